"""One kernel on the PTX machine with every check on: how it is called, and the reports of what was found."""

from __future__ import annotations

from ptxrt.check.run import Report, check
from ptxrt.check.shadow import Shadow, shadow
from ptxrt.check.verify import Level, Verification, verify

__all__ = ["Level", "Report", "Shadow", "Verification", "check", "shadow", "verify"]
