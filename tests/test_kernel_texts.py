"""Every .ptx of the project, and of the tests, assembles for each architecture with no spills; no GPU is needed."""

from __future__ import annotations

from pathlib import Path

import pytest

from ptxrt import ops, sim
from ptxrt.compilers import nvjitlink
from ptxrt.source import read_kernel
from ptxrt.variant import KernelSpec

ARCHITECTURES = ("sm_75", "sm_80", "sm_90", "sm_100", "sm_120")
FOREIGN = sorted((Path(__file__).parent / "foreign_kernels").glob("*.ptx"))


def _name(spec: KernelSpec) -> str:
    """The family, and by what its texts differ."""
    return "-".join([spec.family, *(value for _, value in spec.parameters[:2])])


OWN = {_name(spec): read_kernel(spec.family, **dict(spec.parameters)).text for spec in ops.kernels()}
TEXTS = OWN | {f"foreign {path.stem}": path.read_text() for path in FOREIGN}


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("name", TEXTS)
def test_assembles_without_spills(name, arch):
    reason = nvjitlink.available()
    if reason is not None:
        pytest.skip(reason)
    binary = nvjitlink.compile_ptx(TEXTS[name], arch, name=name)
    assert binary.entries
    for entry in binary.entries:
        report = binary.reports[entry]
        assert (report.spill_store_bytes, report.spill_load_bytes, report.stack_bytes) == (0, 0, 0), entry


@pytest.mark.parametrize("name", TEXTS)
def test_the_machine_parses_it(name):
    assert sim.parse(TEXTS[name], name).entries


@pytest.mark.parametrize("name", OWN)
def test_our_own_text_is_ascii_and_opens_with_a_comment(name):
    text = TEXTS[name]
    assert text.isascii()
    assert text.startswith(f"// {name.split('-')[0]}")


@pytest.mark.parametrize("spec", ops.kernels(), ids=lambda spec: spec.entry)
def test_each_declared_signature_agrees_with_its_text(spec):
    program = sim.parse(spec.source.text, spec.family)
    assert list(program.entries) == [spec.entry]  # and what is compiled for it is it alone
    entry = program.entries[spec.entry]
    from ptxrt.backends.sim import _table

    spec.signature.agree(spec.entry, _table(entry))
    # Declared names are the text's own, so that a message can be read beside it.
    assert [p.name for p in entry.params] == [p.name for p in spec.signature.parameters]


@pytest.mark.parametrize("name", OWN)
def test_every_entry_of_a_file_is_declared(name):
    declared = {spec.entry for spec in ops.kernels() if _name(spec) == name}
    assert set(sim.parse(OWN[name], name).entries) == declared
