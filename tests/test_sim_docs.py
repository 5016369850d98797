"""The tables of docs/sim.md are complete; tests/test_examples.py runs its examples."""

from __future__ import annotations

import argparse
import dataclasses
import re

import pytest
from helpers import ROOT

import ptxrt
from ptxrt import sim
from ptxrt.check.arguments import FORMS
from ptxrt.check.run import check
from ptxrt.commands import check as check_command
from ptxrt.commands._check_report import COLUMNS
from ptxrt.sim._machine.checks import CHECKS

TEXT = (ROOT / "docs" / "sim.md").read_text()


@pytest.mark.parametrize(
    ("name", "instruction"),
    [
        ("`wgmma`", "wgmma.fence.sync.aligned;"),
        ("`mbarrier`", "mbarrier.init.shared::cta.b64 [d], 1;"),
        ("bulk copies", "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [d, {r, r}], [r];"),
        ("bulk copies", "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [r], r, [r];"),
        ("bulk copies", "cp.async.bulk.global.shared::cta.bulk_group [d], [d], 16;"),
    ],
)
def test_what_the_machine_does_not_run_is_said_with_the_line(name: str, instruction: str) -> None:
    assert name in TEXT
    head = ".version 8.6\n.target sm_90a\n.address_size 64\n.entry k()\n{\n.reg .b32 r; .reg .b64 d; .reg .f32 f;\n"
    with pytest.raises(ptxrt.Unsupported, match="line 7: the sim does not run"):
        check(ptxrt.KernelSource.ptx(f"{head}{instruction}\nret;\n}}\n"), grid=1, block=32, arguments={})


def test_every_option_is_there() -> None:
    command = argparse.ArgumentParser(add_help=False)
    check_command.add_arguments(command)
    options = [option for action in command._actions for option in action.option_strings]
    assert len(options) >= 13
    for option in options:
        assert f"`{option}" in TEXT, option


def test_the_tables_are_complete() -> None:
    for name in CHECKS:
        assert f"| `{name}` |" in TEXT
    for name in COLUMNS:
        assert re.search(rf"^\| {name}\b", TEXT, re.MULTILINE), name
    for count in dataclasses.fields(sim.LineCounts):
        assert re.search(rf"`{count.name}`|^\| {count.name}\b", TEXT, re.MULTILINE), count.name
    for kind in re.findall(r"\b(random|arange|zeros|ones|nan|empty|full)\b", FORMS):
        assert f"`{kind}" in TEXT
