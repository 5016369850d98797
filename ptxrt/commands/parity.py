"""``ptxrt parity``: for each entry that there is in HIP, its parameters as declared, in HIP and in PTX if it is there.

The PTX's are read from its text, the HIP's from the code objects that hipRTC makes of it. A code object tells place and
size of what is passed by value, not whether it is a float; so NVRTC, which takes the same text, is asked too. An entry
that the ops launch in their baseline, and that is not in HIP, is a difference.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

from ptxrt import ops
from ptxrt.commands.tables import fitted
from ptxrt.compilers import Binary, ParamInfo, hip_on_nvrtc, hiprtc, nvrtc
from ptxrt.compilers.ptx_text import scan
from ptxrt.errors import InvalidArgument
from ptxrt.runtime.signature import Signature
from ptxrt.runtime.source import KernelSource

__all__ = ["ARCHITECTURES", "compare", "run"]

ARCHITECTURES = ("gfx90a", "gfx942", "gfx1100")
"""What the HIP is compiled for if nothing else is asked for: waves of 64, twice, and of 32."""


def run(word: str, architectures: Sequence[str], say: Callable[[str], None]) -> int:
    """Compare each entry whose name contains `word`, say it line by line, and return the exit code.

    Raises
    ------
    BackendUnavailable
        There is no hipRTC.
    CompileError
        An entry does not compile.
    """
    twins = {spec.entry: spec for spec in ops.kernels() if spec.language == "ptx"}
    in_hip = {spec.entry: spec for spec in ops.kernels() if spec.language == "hip"}
    asked = [entry for entry in in_hip if word in entry]
    if not asked:
        raise InvalidArgument(
            op="parity", argument="WORD", expected=f"a part of one of {', '.join(in_hip)}", given=repr(word)
        )
    for arch in architectures:
        hiprtc.check_target(arch)
    missing = nvrtc.available()
    nvidia = () if missing else ("NVRTC",)
    if missing:
        say(f"Whether what is passed by value is a float or an integer is not compared: {missing}\n")
    wrong = []
    compiled = lru_cache(maxsize=16)(_binary)  # a family's entries come one after another
    for entry in asked:
        spec, twin = in_hip[entry], twins.get(entry)
        found: dict[str, Sequence[ParamInfo] | None] = {}
        if twin:  # a few are in HIP alone
            found["PTX"] = scan(twin.source.text, twin.source.name).entries[entry].params
        for arch in (*nvidia, *architectures):
            found[arch] = compiled(spec.source, arch).entries[entry].params
        lines, agree = compare(spec.signature, found)
        wrong += [] if agree else [entry]
        say(f"{entry}: {'the same' if agree else 'DIFFERENT'}")
        say("\n".join(lines) + "\n")
    say(f"parity: {len(asked) - len(wrong)} of {len(asked)} entries are the same as declared, in PTX and in HIP")
    return 1 if wrong else 0


def _binary(source: KernelSource, compiler: str) -> Binary:
    if compiler == "NVRTC":
        return hip_on_nvrtc.compile_hip_text(source.text, "sm_90", name=source.name, output="ptx")
    return hiprtc.compile_hip(source.text, compiler, name=source.name)


def compare(signature: Signature, found: dict[str, Sequence[ParamInfo] | None]) -> tuple[list[str], bool]:
    """Return the lines of a table, declared and `found` side by side, and whether all agree.

    A row in which something differs from what is declared begins with ``!``.
    """
    count = len(signature.parameters)
    rows, agree = [], True
    for index in range(max(count, *(len(params or ()) for params in found.values()))):
        infos = [params[index] if params and index < len(params) else None for params in found.values()]
        same = index < count and all(info is not None and signature.agrees(index, info) for info in infos)
        agree &= same
        declared = signature.describe(index) if index < count else "-"
        rows.append(("" if same else "!", str(index), declared, *(str(info or "-") for info in infos)))
    return fitted(("", "#", "declared", *found), rows).splitlines(), agree
