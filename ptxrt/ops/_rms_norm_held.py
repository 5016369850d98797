"""The entries of rms_norm whose blocks hold a row in registers."""

from __future__ import annotations

from ptxrt.ops.framework.rows_held import held_family

__all__ = ["FAMILY", "KERNEL", "PARAMETERS"]

KERNEL = "const T* in_ptr, T* out_ptr, const P*? w_ptr, u64 rows, u64 width, P eps, f64 per_value"
PARAMETERS = "const P* partials_ptr, P*? gw_ptr, u64 width, u64 slices"

FAMILY = held_family("rms_norm", kernel=KERNEL, backward_parameters_kernel=PARAMETERS)
