"""The kernels that come with ptxrt: a family of entries is a file, and names them in one way for all ops."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from ptxrt.dtypes import BY_NAME, ElementType
from ptxrt.ops.framework.texts import following, read_kernel
from ptxrt.runtime.device import Device
from ptxrt.runtime.kernel import Kernel, load
from ptxrt.runtime.signature import Signature
from ptxrt.runtime.source import KernelSource

__all__ = ["KernelFamily", "KernelSpec", "Role", "parameter_type"]


def parameter_type(dtype: ElementType) -> ElementType:
    """Return the type of weights, statistics and real scalars beside values of `dtype`: f64 for f64, else f32."""
    return BY_NAME["f64" if dtype.name == "f64" else "f32"]


@dataclass(frozen=True)
class KernelSpec:
    """An entry that comes with ptxrt, and its ABI; made by :meth:`KernelFamily.kernel`.

    Attributes
    ----------
    family
        The file in ``kernels_ptx/`` or ``kernels_hip/``.
    entry, signature
        Its name there, and its parameters.
    op
        The op that it serves: what serves an op's backward has "backward" in its name.
    dtype
        The element type that it is for.
    language
        ``"ptx"`` or ``"hip"``. Entries of one name have the same parameters in both.
    parameters
        What the file is rendered with beside `dtype`: pairs of name and value.
    target
        The number of the oldest of NVIDIA's architectures that takes it, 80 for sm_80; None where all do.
    also
        Further ops that launch it.
    """

    family: str
    entry: str
    signature: Signature
    op: str
    dtype: str = "f32"
    language: str = "ptx"
    parameters: tuple[tuple[str, str], ...] = ()
    target: int | None = None
    also: tuple[str, ...] = ()

    @property
    def source(self) -> KernelSource:
        """The text, as it is compiled: of a PTX family's entries this one alone."""
        return read_kernel(self.family, self.entry, self.language, dtype=self.dtype, **dict(self.parameters))

    def load(self, device: Device, *, follows: bool = False) -> Kernel:
        """Return the entry on `device`, through its module cache; `follows`: as :func:`following` has it."""
        return load(following(self.source) if follows else self.source, self.entry, self.signature, device)


@dataclass(frozen=True)
class Role:
    """What an entry does, whatever its element type and language.

    Attributes
    ----------
    signature
        As :meth:`ptxrt.Signature.parse` reads it, with ``T`` for the element type and ``P`` for that of weights,
        statistics and real scalars (:func:`parameter_type`).
    hip
        Whether the family has it in HIP, too.
    ptx
        Whether it has it in PTX.
    ptx_alone
        The element types that it has in PTX alone, where it is in both.
    parameters
        What its file is rendered with for it.
    dtypes
        The element types that have it; all of the family's if left out.
    target
        The number of the oldest of NVIDIA's architectures that takes its text in PTX, 90 for sm_90; None where the
        element type alone decides.
    """

    signature: str
    hip: bool = False
    parameters: Mapping[str, str] = field(default_factory=dict)
    dtypes: tuple[str, ...] = ()
    target: int | None = None
    ptx: bool = True
    ptx_alone: tuple[str, ...] = ()


class KernelFamily:
    """The entries of one file in ``kernels_ptx/``, and of its twin in ``kernels_hip/``.

    An entry is called by its role; its element type follows, ``softmax2d_kernel_f16``, unless it is `unnamed`.

    Parameters
    ----------
    name
        Of the files, without suffix.
    dtypes
        The element types that a role has, by name, unless it says otherwise.
    roles
        Name -> :class:`Role`.
    unnamed
        The element type that the names leave out; None where they name each.
    targets
        Element type -> the number of the oldest architecture that takes its text in PTX, where not all do:
        ``ROUNDING_TARGETS`` for texts that round to the type.
    op
        The op that they serve, where the files are not named like it.
    also
        Further ops that launch them, whatever their roles.
    """

    def __init__(
        self,
        name: str,
        dtypes: tuple[str, ...],
        roles: Mapping[str, Role],
        unnamed: str | None = "f32",
        targets: Mapping[str, int] | None = None,
        op: str | None = None,
        also: tuple[str, ...] = (),
    ) -> None:
        self.name, self.dtypes, self.roles = name, dtypes, dict(roles)
        self._unnamed, self._targets, self._op = unnamed, targets or {}, op or name
        self._also = also
        self._keys = {
            (role, dtype, language)
            for dtype in dtypes
            for role, described in roles.items()
            if dtype in (described.dtypes or dtypes)
            for language in ("ptx", "hip")
            if (described.ptx if language == "ptx" else described.hip and dtype not in described.ptx_alone)
        }
        self._kernels: dict[tuple[str, str, str], KernelSpec] = {}

    def has(self, dtype: ElementType, language: str) -> bool:
        """Return whether there are entries of an element type in a language."""
        return any(key[1:] == (dtype.name, language) for key in self._keys)

    def kernel(self, role: str, dtype: ElementType, language: str) -> KernelSpec:
        """Return the entry of a role."""
        key = role, dtype.name, language
        # Made when it is asked for: of many entries a program calls few.
        return self._kernels.get(key) or self._kernels.setdefault(key, self._kernel(*key))

    def kernels(self) -> list[KernelSpec]:
        """Return all entries, those in PTX first."""
        return [
            self.kernel(role, BY_NAME[dtype], language)
            for language in ("ptx", "hip")
            for dtype in self.dtypes
            for role in self.roles
            if (role, dtype, language) in self._keys
        ]

    def _kernel(self, role: str, dtype: str, language: str) -> KernelSpec:
        if (role, dtype, language) not in self._keys:
            raise KeyError((role, dtype, language))
        targets = [target for target in (self.roles[role].target, self._targets.get(dtype)) if target is not None]
        return KernelSpec(
            self.name,
            role if dtype == self._unnamed else f"{role}_{dtype}",
            _signature(self.roles[role].signature, BY_NAME[dtype]),
            self._op + ("_backward" if "backward" in role else ""),
            dtype,
            language,
            tuple(sorted(self.roles[role].parameters.items())),
            max(targets, default=None) if language == "ptx" else None,
            self._also,
        )


def _signature(text: str, dtype: ElementType) -> Signature:
    names = {"T": dtype.name, "P": parameter_type(dtype).name}
    return Signature.parse(re.sub(r"\b[TP]\b", lambda letter: names[letter[0]], text))
