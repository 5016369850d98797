"""The entries of rms_norm, and of its backward, whose rows stream through shared memory."""

from __future__ import annotations

from ptxrt.ops._rms_norm_held import KERNEL, PARAMETERS
from ptxrt.ops.framework.rows_streamed import streamed_family

__all__ = ["FAMILY"]

FAMILY = streamed_family("rms_norm", kernel=KERNEL, parameters=PARAMETERS)
