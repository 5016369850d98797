"""The entries of layer_norm whose cluster of blocks has all rows."""

from __future__ import annotations

from ptxrt.ops.framework.rows_few import few_family

__all__ = ["FAMILY"]

FAMILY = few_family("layer_norm", "P*? gw_ptr, P* gb_ptr")
