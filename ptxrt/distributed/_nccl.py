"""NCCL's communicators, which another library has made: nccl4py's, or those of torch's process groups.

What they have in common is the handle of a ncclComm_t. The library that made it is in the process; it is called by
ctypes, so that nothing else need be installed: an all-reduce of integers is one call, on the op's own stream. AMD's
RCCL has the same functions and numbers.
"""

from __future__ import annotations

import ctypes
import re
from functools import lru_cache
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from ptxrt.distributed._communicator import Communicator
from ptxrt.errors import BackendUnavailable, DriverError, InvalidArgument, Unsupported, shown
from ptxrt.runtime.array import DeviceArray
from ptxrt.runtime.device import Device
from ptxrt.runtime.stream import Stream

__all__ = ["NcclCommunicator", "as_communicator"]

_INT64, _SUM = 4, 0  # ncclInt64, ncclSum
_IN_PROGRESS = 7  # ncclInProgress
_MAPS = Path("/proc/self/maps")
_KINDS = {"libnccl": "cuda", "librccl": "hip"}


@lru_cache
def _library(path: str) -> ctypes.CDLL:
    library = ctypes.CDLL(path)
    pointer, number = ctypes.c_void_p, ctypes.c_int
    numbers = ctypes.POINTER(ctypes.c_int)
    for name, arguments in {
        "ncclAllReduce": [pointer, pointer, ctypes.c_size_t, number, number, pointer, pointer],
        "ncclCommCount": [pointer, numbers],
        "ncclCommUserRank": [pointer, numbers],
        "ncclCommCuDevice": [pointer, numbers],
        "ncclCommGetAsyncError": [pointer, numbers],
    }.items():
        function = getattr(library, name)
        function.argtypes, function.restype = arguments, ctypes.c_int
    library.ncclGetErrorString.argtypes, library.ncclGetErrorString.restype = [number], ctypes.c_char_p
    return library


def _loaded() -> tuple[ctypes.CDLL, str]:
    """Return the NCCL or RCCL in the process, the one that made its communicators, and the kind of its devices."""
    maps = _MAPS.read_text() if _MAPS.exists() else ""
    paths = sorted(set(re.findall(r"/\S*/lib[nr]ccl\.so\S*", maps)))
    if not paths:
        raise BackendUnavailable(
            op="NcclCommunicator",
            argument="handle",
            expected="the handle of a communicator of NCCL or RCCL, whose library is in the process",
            given="none in it",
            fix="Make the communicator first, by nccl4py or torch.distributed",
        )
    if len(paths) > 1:
        raise Unsupported(
            op="NcclCommunicator",
            argument="handle",
            expected="one NCCL in the process, since a communicator is of the one that made it",
            given=", ".join(paths),
            fix="Let all libraries use one NCCL",
        )
    return _library(paths[0]), _KINDS[Path(paths[0]).name.partition(".")[0]]


class NcclCommunicator(Communicator):
    """A rank of a communicator of NCCL, or of RCCL on AMD.

    Parameters
    ----------
    handle
        The address of the ncclComm_t, which must be alive as long as this is used.
    timeout
        Seconds after which a rank that waits on the host for another one gives up.
    owner
        What is to live as long as this, such as the object that destroys the communicator.

    Raises
    ------
    InvalidArgument
        For what is no address.
    BackendUnavailable, Unsupported
        If no NCCL is in the process, or several are.
    """

    def __init__(self, handle: int, timeout: float = 60.0, owner: object = None) -> None:
        if handle.__class__ is not int or handle <= 0:
            raise InvalidArgument(
                op="NcclCommunicator",
                argument="handle",
                expected="the address of a communicator",
                given=shown(handle),
                fix="torch makes one at a group's first collective: call torch.distributed.barrier() before",
            )
        self._nccl, kind = _loaded()
        self._handle, self._owner = ctypes.c_void_p(handle), owner
        size, rank, ordinal = (self._number(name) for name in ("ncclCommCount", "ncclCommUserRank", "ncclCommCuDevice"))
        super().__init__(rank, size, Device(f"{kind}:{ordinal}"), timeout)

    def all_reduce(self, array: DeviceArray, stream: Stream) -> None:
        """As :meth:`Communicator.all_reduce`, by one ncclAllReduce."""
        array.memory.used_on(stream)
        self.device.backend.give(self.device.ordinal, self._all_reduce, array.ptr, array.nbytes, stream.handle)

    def _all_reduce(self, ptr: int, nbytes: int, stream: int) -> None:
        status = self._nccl.ncclAllReduce(ptr, ptr, nbytes // 8, _INT64, _SUM, self._handle, stream)
        self._must("ncclAllReduce", status)

    def lost(self) -> str | None:
        """Return what NCCL knows: an error of a rank on another host, which it does not name."""
        status = self._number("ncclCommGetAsyncError")
        return None if status in (0, _IN_PROGRESS) else f"NCCL has an error: {self._words(status)}"

    def _number(self, name: str) -> int:
        number = ctypes.c_int()
        self._must(name, getattr(self._nccl, name)(self._handle, ctypes.byref(number)))
        return number.value

    def _must(self, name: str, status: int) -> None:
        if status not in (0, _IN_PROGRESS):
            raise DriverError(f"{name}: {self._words(status)}", op=name)

    def _words(self, status: int) -> str:
        words: bytes = self._nccl.ncclGetErrorString(status)
        return words.decode()


_FOUND: WeakKeyDictionary[Any, Communicator] = WeakKeyDictionary()


def as_communicator(given: Any, op: str = "as_communicator") -> Communicator:
    """Return a Communicator of ours for one of nccl4py's, or for a process group of torch's; ours as it is.

    The same one comes back as long as the object lives.

    Raises
    ------
    InvalidArgument
        For what is none of these, and for a process group that has no communicator of NCCL yet.
    BackendUnavailable, Unsupported
        As :class:`NcclCommunicator`.
    """
    if isinstance(given, Communicator):
        return given
    origin = type(given).__module__.partition(".")[0]
    if origin != "torch" and not (origin == "nccl" and hasattr(given, "ptr")):
        raise InvalidArgument(
            op=op,
            argument="communicator",
            expected="a ptxrt.distributed.Communicator, nccl.core's Communicator, or torch's ProcessGroup",
            given=f"{shown(given)} ({type(given).__name__})",
            fix="Of another library's handle ptxrt.distributed.NcclCommunicator(handle) makes one",
        )
    found = _FOUND.get(given)
    if found is None:
        handle = int(given.ptr) if origin == "nccl" else _handle_of_torch(given, op)
        found = _FOUND[given] = NcclCommunicator(handle)
    return found


def _handle_of_torch(group: Any, op: str) -> int:
    """Return the handle that a process group of torch's has for the current device."""
    import torch  # noqa: PLC0415 (whoever has its process group has it)

    try:
        backend = group._get_backend(torch.device("cuda", torch.cuda.current_device()))
        return int(backend._comm_ptr())
    except (AttributeError, RuntimeError) as error:
        raise InvalidArgument(
            op=op,
            argument="communicator",
            expected="a process group with NCCL as its backend, in a version of torch that tells the handle",
            given=f"{shown(group)}: {error}",
            fix="Make a communicator with nccl4py, or call torch.distributed.barrier() first",
        ) from error
