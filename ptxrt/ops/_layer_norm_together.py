"""The entries of layer_norm whose warps have several rows at a time."""

from __future__ import annotations

from ptxrt.ops._layer_norm_held import KERNEL
from ptxrt.ops.framework.rows_together import together_family

__all__ = ["FAMILY"]

FAMILY = together_family("layer_norm", kernel=KERNEL)
