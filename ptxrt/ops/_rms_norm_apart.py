"""The entries of rms_norm whose blocks have rows, or columns of all rows."""

from __future__ import annotations

from ptxrt.ops.framework.rows_few import apart_family

__all__ = ["FAMILY"]

FAMILY = apart_family("rms_norm", "P*? gw_ptr")
