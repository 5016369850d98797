"""The entries of layer_norm whose warps have several rows at a time."""

from __future__ import annotations

from ptxrt.ops.framework.rows_together import together_family

__all__ = ["FAMILY"]

FAMILY = together_family(
    "layer_norm",
    kernel="const T* in_ptr, T* out_ptr, const P*? w_ptr, const P*? b_ptr, u64 rows, u64 width, P eps, f64 per_value",
)
