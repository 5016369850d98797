"""Reading AMD's code objects. They are those of code_objects.py."""

from __future__ import annotations

import random
import sys
from typing import Any

import pytest
from code_objects import CODE, KERNEL, METADATA, code_object, elf, msgpack, note
from helpers import Patch

from ptxrt.compilers import ParamInfo, Report
from ptxrt.compilers._code_object import machine_code, read_code_object
from ptxrt.errors import BackendUnavailable, InvalidArgument

NESTED = b"\x91" * 1010 + b"\xc0"  # lists in lists, as deep as msgpack takes them


def changed(**fields: object) -> bytes:
    """The code object with fields of its kernel set, or with ... left out."""
    kernel = {**KERNEL, **{f".{key}": value for key, value in fields.items()}}
    return code_object({**METADATA, "amdhsa.kernels": [{k: v for k, v in kernel.items() if v is not ...}]})


def test_parameters_are_the_declared_ones_with_offset_size_and_kind() -> None:
    (entry,) = read_code_object(code_object()).entries.values()
    assert entry.name == "scale"
    assert entry.params == (ParamInfo(0, 8, "pointer", "x"), ParamInfo(8, 4, "bits"), ParamInfo(16, 16, "bits"))


@pytest.mark.parametrize(
    ("value_kind", "value_type", "kind"),
    [
        ("global_buffer", None, "pointer"),
        ("dynamic_shared_pointer", None, "pointer"),
        ("by_value", None, "bits"),
        ("by_value", "struct", "bits"),
        ("by_value", "f16", "float"),
        ("by_value", "i64", "int"),
        ("by_value", "u8", "int"),
        ("image", None, None),
    ],
)
def test_a_parameters_kind(value_kind: str, value_type: str | None, kind: str | None) -> None:
    row = {".offset": 0, ".size": 8, ".value_kind": value_kind}
    row |= {".value_type": value_type} if value_type else {}
    (entry,) = read_code_object(changed(args=[row])).entries.values()
    assert [p.kind for p in entry.params or ()] == [kind]


@pytest.mark.parametrize("key", [".name", ".value_type"])
def test_a_word_of_a_parameter_that_is_none_counts_for_nothing(key: str) -> None:
    row = {".offset": 0, ".size": 8, ".value_kind": "by_value", key: ["float"]}
    packed = msgpack.packb({**METADATA, "amdhsa.kernels": [{**KERNEL, ".args": [row]}]})
    deep = packed.replace(msgpack.packb(["float"]), NESTED)
    (entry,) = read_code_object(elf(note(deep))).entries.values()
    assert entry.params == (ParamInfo(0, 8, "bits"),)


def test_the_report_tells_each_resource() -> None:
    (report,) = read_code_object(code_object()).reports.values()
    assert report == Report(
        registers=57,
        stack_bytes=48,
        shared_bytes=256,
        scalar_registers=38,
        accumulation_registers=3,
        spilled_registers=2,
        spilled_scalar_registers=1,
        wave_size=64,
        max_threads=256,
        kernarg_bytes=288,
    )


def test_what_the_metadata_leaves_out_is_none() -> None:
    report = read_code_object(changed(agpr_count=..., vgpr_spill_count=...)).reports["scale"]
    assert (report.accumulation_registers, report.spilled_registers) == (None, None)


@pytest.mark.parametrize("args", [..., []])
def test_a_kernel_without_parameters_has_an_empty_table(args: Any) -> None:
    assert read_code_object(changed(args=args)).entries["scale"].params == ()


def test_the_target_keeps_its_flags() -> None:
    assert read_code_object(code_object()).target == "gfx90a:sramecc+:xnack-"


def test_the_instructions_of_a_kernel_are_found_by_its_symbol() -> None:
    assert machine_code(code_object(), "scale") == (0x1004, CODE[4:12])


@pytest.mark.parametrize("name", ["data", "nothing"])
def test_what_is_no_function_has_no_instructions(name: str) -> None:
    with pytest.raises(InvalidArgument, match=f"without instructions of {name}"):
        machine_code(code_object(), name)


def test_notes_of_others_are_passed_over() -> None:
    others = note(b"abcd", 1, b"GNU\0") + note(msgpack.packb({}), 33) + note(msgpack.packb({}), 32, b"AMD\0")
    assert read_code_object(elf(others + note(msgpack.packb(METADATA)))).target.startswith("gfx90a")


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (b"", "cannot be read"),
        (b"hello" * 30, "cannot be read"),
        (code_object()[:100], "cannot be read"),
        (elf(note(msgpack.packb(METADATA)), machine=62), "EM_X86_64"),
        (elf(note(b"abcd", 1, b"GNU\0")), "0 NT_AMDGPU_METADATA notes"),
        (elf(note(msgpack.packb(METADATA)) * 2), "2 NT_AMDGPU_METADATA notes"),
        (elf(note(b"\xc1\xc1\xc1\xc1")), "cannot be unpacked"),
        (elf(note(msgpack.packb(METADATA)[:200])), "cannot be unpacked"),
        (elf(note(b"\x91" * 5000 + b"\0")), "cannot be unpacked"),
        (elf(note(b"\x81" + msgpack.packb("amdhsa.target") + NESTED)), "amdhsa.target of the metadata is [[[["),
        (code_object([1]), "amdhsa.target"),
        (code_object({**METADATA, "amdhsa.target": 3}), "amdhsa.target of the metadata is 3"),
        (code_object({**METADATA, "amdhsa.kernels": {}}), "amdhsa.kernels"),
        (code_object({**METADATA, "amdhsa.kernels": [7]}), ".name of a kernel"),
        (changed(name=None), ".name of a kernel is None"),
        (changed(args=3), ".args of scale is 3"),
        (changed(args=[4]), ".value_kind of a parameter of scale"),
        (changed(args=[{".offset": 0, ".value_kind": "by_value"}]), ".size of scale is None"),
        (changed(args=[{".offset": -1, ".size": 4, ".value_kind": "by_value"}]), ".offset of scale is -1"),
        (changed(vgpr_count="9"), ".vgpr_count of scale is '9'"),
        (changed(vgpr_count=True), ".vgpr_count of scale is True"),
        (changed(sgpr_count=1 << 40), ".sgpr_count of scale"),
    ],
)
def test_what_is_no_code_object_is_one_clear_error(code: Any, words: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        read_code_object(code)
    error = caught.value
    assert words in str(error)
    assert (error.op, error.argument) == ("code object", "code")
    assert not str(error).rstrip().endswith(":")


def test_damaged_bytes_are_read_or_refused_and_nothing_else() -> None:
    """Cuts, each byte of the headers in turn, and bytes anywhere: an answer or an InvalidArgument."""
    whole, chance = code_object(), random.Random(5)
    damaged = [whole[:length] for length in range(0, len(whole), 7)]
    damaged += [whole[:at] + bytes([value]) + whole[at + 1 :] for at in range(130) for value in (0, 0x7F, 0xFF)]
    for _ in range(500):
        changing = bytearray(whole)
        for _ in range(chance.choice((1, 3, 30))):
            changing[chance.randrange(len(changing))] = chance.randrange(256)
        damaged.append(bytes(changing))
    answers = {"read": 0, "refused": 0}
    for code in damaged:
        for read in (read_code_object, lambda code: machine_code(code, "scale")):
            try:
                read(code)
                answers["read"] += 1
            except InvalidArgument:
                answers["refused"] += 1
    assert min(answers.values()) > 100


@pytest.mark.parametrize(("module", "package"), [("msgpack", "msgpack"), ("elftools.elf.elffile", "pyelftools")])
def test_without_a_package_the_answer_names_it(module: str, package: str, monkeypatch: Patch) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(BackendUnavailable, match=f"the package {package} cannot be loaded") as caught:
        read_code_object(code_object())
    assert caught.value.fix == 'pip install "ptxrt[hip]"'
