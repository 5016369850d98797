"""The entries of layer_norm's backward whose rows stream through shared memory."""

from __future__ import annotations

from ptxrt.ops.framework.rows_streamed import streamed_family

__all__ = ["FAMILY"]

FAMILY = streamed_family(
    "layer_norm",
    kernel="const T* in_ptr, T* out_ptr, const P*? w_ptr, const P*? b_ptr, u64 rows, u64 width, P eps, f64 per_value",
    parameters="const P* partials_ptr, P*? gw_ptr, P* gb_ptr, u64 width, u64 slices",
)
