"""A kernel that follows its file: the next launch after a change of the text, or of a header, compiles it anew."""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ptxrt.compilers import Included
from ptxrt.errors import CompileError, InvalidArgument, PtxrtError, ReloadWarning
from ptxrt.runtime.calling import Launcher, arranged
from ptxrt.runtime.device import Device
from ptxrt.runtime.kernel import Kernel, KernelIdentity
from ptxrt.runtime.modules import LoadedModule
from ptxrt.runtime.protocols import KernelArgument
from ptxrt.runtime.source import KernelSource

__all__ = ["following"]


def following(source: KernelSource) -> Callable[..., Kernel]:
    """Return what makes a Kernel that follows the file of `source`, of the arguments that Kernel takes.

    Raises
    ------
    InvalidArgument
        For a source that was not read from a file.
    """
    if source.file is None:
        raise InvalidArgument(
            op="load",
            argument="reload",
            expected="a source that was read from a file",
            given="a source that was given as a text",
            fix="KernelSource.from_file(path) reads one",
        )
    return partial(_FollowingKernel, source.file)


class _FollowingLauncher(Launcher):
    """A Launcher that launches as its kernel does: after a look at the file."""

    __slots__ = ()

    def __call__(self, /, *args: KernelArgument, **named: KernelArgument) -> None:
        """Check every argument, and launch; see :meth:`_FollowingKernel.launch`."""
        kernel, dims = self._kernel, self._dims
        values = arranged(kernel.entry, kernel.signature, args, named) if named else args
        kernel.launch(dims[:3], dims[3:], *values, shared_bytes=self._shared, stream=self._queue)


class _FollowingKernel(Kernel):
    """A Kernel whose launches look at its file first: a class of its own, so that no other launch pays for it."""

    _launcher = _FollowingLauncher

    def __init__(self, file: Path, device: Device, module: LoadedModule, identity: KernelIdentity) -> None:
        super().__init__(device, module, identity)
        self._file = file
        # Launches of several threads wait for each other, so that each has one version of all that belongs to a kernel.
        self._lock = threading.RLock()
        self._watch(module.binary.included)
        self._held = ""  # so that the first launch sees what has changed since the source was read

    def launch(self, *args: Any, **how: Any) -> None:
        """Compile the file anew if it or a header has changed, then launch; otherwise as :meth:`Kernel.launch`.

        A text that does not compile, or whose parameters are not the signature's, is a ReloadWarning with the error,
        once for each change; the kernel as it was before is launched.
        """
        with self._lock:
            self._follow()
            # A signal handler that launches too may put the next module in the place of this one meanwhile.
            module = self._module
            super().launch(*args, **how)
            del module

    def _follow(self) -> None:
        refused: PtxrtError | None = None
        # Once more where a change has brought other headers: they may have changed since they were read.
        while (held := self._watched.digest()) != self._held:
            refused = self._renewed()
            self._held = held  # behind it, so that an interrupted compile is tried again
        if refused is not None:
            # The time tells this message from the last one, which Python would otherwise not repeat.
            now = time.strftime("%H:%M:%S")
            message = f"{self.source.name} as of {now} cannot be used, and the kernel as it was before is launched"
            warnings.warn(f"{message}. {type(refused).__name__}: {refused}", ReloadWarning, stacklevel=3)

    def _renewed(self) -> PtxrtError | None:
        """Become the kernel of the file as it is now; return the error where it cannot be that."""
        modules = self.device.modules
        try:
            source = replace(KernelSource.from_file(self._file, dict(self.source.defines)), name=self.source.name)
            module = modules.module(source, self.entry, self.identity.options)
            self._watch(module.binary.included)
            if module is not self._module:
                # Made apart, so that an error leaves this kernel as it is; then all attributes change in one step.
                vars(self).update(vars(Kernel(self.device, module, self.identity._replace(source=source))))
                module.add_kernel(self)
        except CompileError as error:
            self._watch(error.included)
            return error
        except PtxrtError as error:
            return error
        finally:
            modules.trim()
        return None

    def _watch(self, included: Included | None) -> None:
        self._watched = Included((str(self._file), *(included.files if included else ())))
