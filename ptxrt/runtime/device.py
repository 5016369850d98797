"""Device: discovery, the default device, and what belongs to one device. Nothing here calls a driver at import."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ptxrt import backends, memos
from ptxrt.errors import BackendUnavailable, InvalidArgument, shown
from ptxrt.runtime.modules import ModuleCache
from ptxrt.runtime.stream import Queue, Stream
from ptxrt.store import current

if TYPE_CHECKING:
    from ptxrt.backends import Backend, DeviceProperties

__all__ = ["WHEN_OPENED", "Device", "as_device", "default_device", "devices", "opened_devices"]

_KINDS = ("cuda", "hip", "sim")
_lock = threading.RLock()
_known: dict[tuple[str, int], Device] = {}

WHEN_OPENED: list[Callable[[Device], None]] = []
"""What is called with each device that is opened from now on."""


class Device:
    """One device: ``Device("cuda:0")``, ``Device("hip:0")``, ``Device("sim:0")``. Equal names give the same object.

    Parameters
    ----------
    name
        Kind and ordinal; ``"cuda"`` is ``"cuda:0"``. A Device is returned as it is.

    Attributes
    ----------
    kind : str
        ``"cuda"``, ``"hip"`` or ``"sim"``.
    ordinal : int
    properties : DeviceProperties
        Name, architecture, limits.
    modules : ModuleCache
        What is loaded on this device.
    default_stream : Stream
        The driver's legacy default stream, the one other libraries use by default.

    Raises
    ------
    InvalidArgument
        For a name of another form, or an ordinal that does not exist.
    BackendUnavailable
        If the kind's driver or package is missing; the message says what to install.
    """

    kind: str
    ordinal: int
    backend: Backend
    properties: DeviceProperties
    modules: ModuleCache
    default_stream: Stream

    def __new__(cls, name: str | Device) -> Device:
        if isinstance(name, Device):
            return name
        match = re.fullmatch(r"([a-z]+)(?::(\d{1,9}))?", name) if isinstance(name, str) else None
        if match is None or match[1] not in _KINDS:
            raise InvalidArgument(
                op="Device",
                argument="name",
                expected="a name such as 'hip:0', 'cuda:0' or 'sim:0'",
                given=shown(name),
                fix=_near(name) + "ptxrt.devices() lists the devices there are",
            )
        kind, ordinal = match[1], int(match[2] or 0)
        with _lock:
            device = _known.get((kind, ordinal))
            if device is None:
                device = _known[kind, ordinal] = cls._open(kind, ordinal)
        return device

    @classmethod
    def _open(cls, kind: str, ordinal: int) -> Device:
        backend = backends.get(kind)
        reason = backend.unavailable()
        if reason is not None:
            raise BackendUnavailable(f"Device: {kind}:{ordinal} cannot be used: {reason}", op="Device", argument="name")
        store = current()
        memos.use(store.memos if store and store.usable else None)
        count = backend.device_count()
        if ordinal >= count:
            raise InvalidArgument(
                op="Device",
                argument="name",
                expected=f"an ordinal below {count}, the number of {kind} devices",
                given=f"{kind}:{ordinal}",
                fix="ptxrt.devices() lists them" + ("; PTXRT_SIM_DEVICES sets their number" if kind == "sim" else ""),
            )
        device = super().__new__(cls)
        device.kind, device.ordinal, device.backend = kind, ordinal, backend
        device.properties = backend.properties(ordinal)
        device.modules = ModuleCache(str(device), backend, ordinal, device.properties)
        device.default_stream = Stream._wrap(device, 0, queue=Queue(device, 0))
        if file := os.environ.get("PTXRT_CACHE_SNAPSHOT"):
            from ptxrt.runtime._snapshots import watch  # noqa: PLC0415 (for few)

            watch(device.modules, file)
        for call in WHEN_OPENED:
            call(device)
        return device

    def __str__(self) -> str:
        return f"{self.kind}:{self.ordinal}"

    def __repr__(self) -> str:
        return f"Device({str(self)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return (Device, (str(self),))

    @property
    def name(self) -> str:
        """The product's name, ``"NVIDIA H200"``."""
        return self.properties.name

    @property
    def arch(self) -> str:
        """The architecture compiled for, ``"sm_90"``; AMD's with its feature flags, ``"gfx90a:sramecc+:xnack-"``."""
        return self.properties.arch

    def create_stream(self) -> Stream:
        """Return a new stream, which does not synchronise with the default stream."""
        return Stream(self)

    def synchronize(self) -> None:
        """Wait on the host for all work on the device."""
        self.backend.synchronize(self.ordinal, None)

    def intercept(self, watcher: Any) -> None:
        """Put `watcher` before the backend: it gets every call from now on, and passes on what it does not take.

        It has what is behind it, the backend or another watcher, as its ``_backend``. One that says that it is
        ``foremost`` stays before those that come later.
        """
        with _lock:
            before, name = self._place(lambda behind: not getattr(type(behind), "foremost", False))
            watcher._backend = getattr(before, name)
            setattr(before, name, watcher)

    def withdraw(self, watcher: Any) -> None:
        """Take a watcher away again, wherever it stands; in a forked child it is not there any more."""
        with _lock:
            before, name = self._place(lambda behind: behind is watcher or "_backend" not in vars(behind))
            if getattr(before, name) is watcher:
                setattr(before, name, watcher._backend)

    def _place(self, wanted: Callable[[Any], bool]) -> tuple[Any, str]:
        """Return the object and its attribute that has the first backend, from the front, which is `wanted`."""
        before, name = self, "backend"
        while not wanted(behind := getattr(before, name)):
            before, name = behind, "_backend"
        return before, name

    def trim_memory(self) -> None:
        """Wait for all work on the device, and give back to the driver the memory of freed arrays.

        Otherwise it stays reserved for later arrays, which are then allocated faster, and other libraries and processes
        cannot have it.
        """
        self.synchronize()
        self.backend.trim_memory(self.ordinal)


def _near(name: object) -> str:
    """Return "Did you mean ...? " for what is almost a device's name, nothing for any other."""
    import difflib  # noqa: PLC0415 (for messages alone)

    kind, _, ordinal = name.partition(":") if isinstance(name, str) else ("", "", "")
    close = difflib.get_close_matches(
        {"gpu": "cuda", "amd": "hip", "rocm": "hip"}.get(kind.lower(), kind.lower()), _KINDS, n=1
    )
    return f"Did you mean {close[0]}:{ordinal if re.fullmatch('[0-9]{1,9}', ordinal) else 0}? " if close else ""


def devices() -> list[Device]:
    """Return all devices, the fastest kind first, sim last. A kind whose driver is missing has none; it is no error."""
    return [Device(f"{kind}:{ordinal}") for kind in _KINDS for ordinal in range(backends.get(kind).device_count())]


def opened_devices() -> list[Device]:
    """Return the devices that this process has opened so far."""
    return list(_known.values())


def default_device() -> Device:
    """Return the device that PTXRT_DEVICE names, or the first of :func:`devices`.

    Raises
    ------
    InvalidArgument, BackendUnavailable
        If PTXRT_DEVICE names a device that does not exist.
    """
    # Only the one that is returned is opened.
    return Device(os.environ.get("PTXRT_DEVICE") or next(k for k in _KINDS if backends.get(k).device_count()))


def as_device(device: Device | str | None) -> Device:
    """Return a Device for a Device, a name, or None, which is the default device."""
    return default_device() if device is None else Device(device)


def _close_devices() -> None:
    # After a fork the child has the parent's handles but none of its driver: pains.md, number 17.
    global _lock  # noqa: PLW0603
    _lock = threading.RLock()
    for device in _known.values():
        device.backend = backends.Forked(device.backend.name)
        device.modules._after_fork(device.backend)


os.register_at_fork(after_in_child=_close_devices)
