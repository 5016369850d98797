"""ptxrt: kernels as strings, compiled at run time, checked against their own binary, launched from Python."""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

from ptxrt.errors import (
    BackendUnavailable,
    CompileError,
    DataRace,
    Deadlock,
    DeviceMismatch,
    DriverError,
    DTypeMismatch,
    InvalidArgument,
    LaunchError,
    LayoutError,
    MemoryFault,
    OutOfDeviceMemory,
    PtxrtError,
    ShadowMismatch,
    ShapeMismatch,
    SignatureMismatch,
    Unsupported,
)
from ptxrt.runtime.array import DeviceArray, empty, to_device, zeros
from ptxrt.runtime.device import Device, default_device, devices
from ptxrt.runtime.interop import from_dlpack
from ptxrt.runtime.kernel import Kernel, load
from ptxrt.runtime.modules import ModuleCache
from ptxrt.runtime.protocols import (
    DeviceArrayLike,
    KernelArgument,
    StreamLike,
    SupportsCudaArrayInterface,
    SupportsCudaStream,
    SupportsDLPack,
)
from ptxrt.runtime.signature import Signature
from ptxrt.runtime.source import KernelSource
from ptxrt.runtime.stream import Event, Stream

if TYPE_CHECKING:
    from ptxrt import ops
    from ptxrt.check.shadowing import shadow
    from ptxrt.ops import references
    from ptxrt.ops.framework import PlanPreference, PrecisionGuarantee

__version__ = "0.1.0"

__all__ = [
    "BackendUnavailable",
    "CompileError",
    "DTypeMismatch",
    "DataRace",
    "Deadlock",
    "Device",
    "DeviceArray",
    "DeviceArrayLike",
    "DeviceMismatch",
    "DriverError",
    "Event",
    "InvalidArgument",
    "Kernel",
    "KernelArgument",
    "KernelSource",
    "LaunchError",
    "LayoutError",
    "MemoryFault",
    "ModuleCache",
    "OutOfDeviceMemory",
    "PlanPreference",
    "PrecisionGuarantee",
    "PtxrtError",
    "ShadowMismatch",
    "ShapeMismatch",
    "Signature",
    "SignatureMismatch",
    "Stream",
    "StreamLike",
    "SupportsCudaArrayInterface",
    "SupportsCudaStream",
    "SupportsDLPack",
    "Unsupported",
    "default_device",
    "devices",
    "empty",
    "from_dlpack",
    "load",
    "ops",
    "references",
    "shadow",
    "to_device",
    "zeros",
]


# Imported at their first use: a program of its own kernels needs neither the ops nor the PTX machine.
_LATER = {
    "PlanPreference": "ptxrt.ops.framework",
    "PrecisionGuarantee": "ptxrt.ops.framework",
    "ops": "ptxrt.ops",
    "references": "ptxrt.ops.references",
    "shadow": "ptxrt.check.shadowing",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'ptxrt' has no attribute {name!r}")
    module = importlib.import_module(_LATER[name])
    found = module if name in ("ops", "references") else getattr(module, name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


if os.environ.get("PTXRT_SHADOW"):
    from ptxrt.check.shadowing import shadow_process

    shadow_process()
