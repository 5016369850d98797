"""Compilers: kernel text in, device binary out. Nothing here needs a device or a driver.

Importing this package, or any module in it, loads no vendor library: they are looked for at the first call.
"""

from __future__ import annotations

from ptxrt.compilers._binary import Binary, EntryInfo, ParamInfo, Report
from ptxrt.compilers._cxx_types import demangled
from ptxrt.compilers._included import Included

__all__ = ["Binary", "EntryInfo", "Included", "ParamInfo", "Report", "demangled"]
