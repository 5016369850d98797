"""ptxrt: kernels as strings, compiled at run time, checked against their own binary, launched from Python."""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

from ptxrt._version import __version__ as __version__

if TYPE_CHECKING:
    from ptxrt import events, ops
    from ptxrt.check.shadowing import shadow
    from ptxrt.errors import (
        AssertionFailed,
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
        RankLost,
        RanksDisagree,
        ReloadWarning,
        ShadowMismatch,
        ShapeMismatch,
        SignatureMismatch,
        Unsupported,
        WrongResult,
    )
    from ptxrt.ops import references
    from ptxrt.ops.framework import PlanPreference, PrecisionGuarantee
    from ptxrt.runtime.array import DeviceArray, empty, full, ones, to_device, zeros
    from ptxrt.runtime.calling import grid_for
    from ptxrt.runtime.device import Device, default_device, devices
    from ptxrt.runtime.graphs import Graph, capture
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
    from ptxrt.runtime.textures import Surface, Texture

__all__ = [
    "AssertionFailed",
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
    "Graph",
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
    "RankLost",
    "RanksDisagree",
    "ReloadWarning",
    "ShadowMismatch",
    "ShapeMismatch",
    "Signature",
    "SignatureMismatch",
    "Stream",
    "StreamLike",
    "SupportsCudaArrayInterface",
    "SupportsCudaStream",
    "SupportsDLPack",
    "Surface",
    "Texture",
    "Unsupported",
    "WrongResult",
    "capture",
    "default_device",
    "devices",
    "empty",
    "events",
    "from_dlpack",
    "full",
    "grid_for",
    "load",
    "ones",
    "ops",
    "references",
    "shadow",
    "to_device",
    "zeros",
]


# Everything is imported at its first use. pytest imports a plugin of ours in everybody's runs, a program of its own
# kernels needs no ops, and most programs need no PTX machine. What is not listed here is one of the errors.
_WHERE = {
    "check.shadowing": ("shadow",),
    "ops.framework": ("PlanPreference", "PrecisionGuarantee"),
    "runtime.array": ("DeviceArray", "empty", "full", "ones", "to_device", "zeros"),
    "runtime.calling": ("grid_for",),
    "runtime.device": ("Device", "default_device", "devices"),
    "runtime.graphs": ("Graph", "capture"),
    "runtime.interop": ("from_dlpack",),
    "runtime.kernel": ("Kernel", "load"),
    "runtime.modules": ("ModuleCache",),
    "runtime.protocols": (
        "DeviceArrayLike",
        "KernelArgument",
        "StreamLike",
        "SupportsCudaArrayInterface",
        "SupportsCudaStream",
        "SupportsDLPack",
    ),
    "runtime.signature": ("Signature",),
    "runtime.source": ("KernelSource",),
    "runtime.stream": ("Event", "Stream"),
    "runtime.textures": ("Surface", "Texture"),
}
_NAMES = {name: module for module, names in _WHERE.items() for name in names}
_MODULES = {
    name: name
    for name in ("check", "compilers", "backends", "dtypes", "distributed", "errors", "events", "ops", "runtime", "sim")
}
_MODULES["references"] = "ops.references"


def __getattr__(name: str) -> Any:
    module = _MODULES.get(name) or (_NAMES.get(name, "errors") if name in __all__ else None)
    if module is None:
        raise AttributeError(f"module 'ptxrt' has no attribute {name!r}")
    from ptxrt.collector import paused  # noqa: PLC0415 (as all)

    with paused():
        found = importlib.import_module(f"ptxrt.{module}")
    if name not in _MODULES:
        found = getattr(found, name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


if os.environ.get("PTXRT_SHADOW", "") not in ("", "0"):
    from ptxrt.check.shadowing import shadow_process

    shadow_process()
