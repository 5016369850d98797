"""One kernel on the PTX machine with every check on: how it is called, and the reports of what was found."""

from __future__ import annotations

from ptxrt.check.levels import Level, Verification, verify
from ptxrt.check.run import Report, check
from ptxrt.check.shadowing import Shadow, shadow

__all__ = ["Level", "Report", "Shadow", "Verification", "check", "shadow", "verify"]
