"""One kernel on the PTX machine with every check on: how it is called, and the reports of what was found."""

from __future__ import annotations

from ptxrt.check.run import Report, check

__all__ = ["Report", "check"]
