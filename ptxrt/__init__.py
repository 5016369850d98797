"""ptxrt: kernels as strings, compiled at run time, checked against their own binary, launched from Python."""

from __future__ import annotations

from ptxrt import ops
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
    ReloadWarning,
    ShapeMismatch,
    SignatureMismatch,
    Unsupported,
)
from ptxrt.ops import references
from ptxrt.ops.framework import PlanPreference, PrecisionGuarantee
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
    "ReloadWarning",
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
    "to_device",
    "zeros",
]
