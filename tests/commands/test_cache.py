"""A snapshot, written by a real cache, read, filtered, sorted and printed; and files that are no snapshot."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from helpers import refused

import ptxrt
from ptxrt.commands._snapshot import read_snapshot
from ptxrt.commands._snapshot_report import KEYS, inspect
from ptxrt.commands.tables import printable
from ptxrt.runtime.modules import ModuleCache

Rewrite: TypeAlias = Callable[[Callable[[Any], object]], Path]

KERNEL = """
.version 7.0
.target sm_70
.address_size 64
.visible .entry {name}(.param .u64 x_ptr, .param .f32 a)
{{
    {body}
    ret;
}}
"""


def source(name: str, body: str = "") -> ptxrt.KernelSource:
    return ptxrt.KernelSource.ptx(KERNEL.format(name=name, body=body), name=f"{name} of a test")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The snapshot of a cache with two loaded modules, one held by a live Kernel, and one failure."""
    device, path = ptxrt.Device("sim:1"), tmp_path_factory.mktemp("cache") / "snapshot.json"
    cache = ModuleCache(str(device), device.backend, device.ordinal, device.properties)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device, "modules", cache)  # the device's own has what other tests hold
        held = ptxrt.load(source("inspect_first"), "inspect_first", "f32* x, f32 a", device)
        for _ in range(3):
            ptxrt.load(source("inspect_second"), "inspect_second", "f32* x, f32 a", device, options=("-O3",))
        with pytest.raises(ptxrt.CompileError):
            ptxrt.load(source("inspect_wrong", "frobnicate.u32;"), "inspect_wrong", "f32* x, f32 a", device)
        cache.snapshot(path)
    del held
    return path


@pytest.fixture
def record(written: Path) -> Any:
    return json.loads(written.read_text())


@pytest.fixture
def rewritten(record: Any, tmp_path: Path) -> Rewrite:
    """Write the snapshot again, with a change."""

    def rewrite(change: Callable[[Any], object]) -> Path:
        changed = copy.deepcopy(record)
        change(changed)
        path = tmp_path / "changed.json"
        path.write_text(json.dumps(changed))
        return path

    return rewrite


def names(path: Path, **how: Any) -> list[str]:
    """The entries that inspect shows, by their sources' names."""
    text, _ = inspect(path, as_json=True, **how)
    return [entry["name"].split()[0].removeprefix("inspect_") for entry in json.loads(text)]


# What is shown ----------------------------------------------------------------------------------------------------


def test_the_table_has_a_line_for_each_entry(written: Path, record: Any) -> None:
    text, matched = inspect(written)
    assert matched
    lines = text.splitlines()
    head = next(i for i, line in enumerate(lines) if line.startswith("digest"))
    assert " ".join(lines[head].split()) == "digest state language entries arch compiler size uses live compile ms age"
    cells = [re.split(r"\s{2,}", line) for line in lines[head + 1 : lines.index("", head)]]
    assert [row[0] for row in cells] == [entry["digest"][:12] for entry in record["entries"]]
    assert [row[1:5] for row in cells] == [
        ["loaded", "ptx", "inspect_first", "sm_90"],
        ["loaded", "ptx", "inspect_second", "sm_90"],
        ["failed", "ptx", "inspect_wrong", "sm_90"],
    ]
    uses, live = zip(*(row[7:9] for row in cells), strict=True)
    assert uses == ("1", "3", "1")
    assert live[0] == "1"


def test_the_first_line_of_each_error_stands_below_the_table(written: Path, record: Any) -> None:
    failed = record["entries"][2]
    below = inspect(written)[0].split("\n\nfailed\n")[1]
    assert below == f"{failed['digest'][:12]}  {failed['error'].splitlines()[0]}"
    assert "failed\n" not in inspect(written, filters=["state=loaded"])[0]


def test_the_head_tells_of_the_device_and_the_counts(written: Path, record: Any) -> None:
    head = inspect(written)[0].split("\n\n")[0]
    assert head.startswith("sim:1: PTX machine, sm_90, driver ")
    assert f"{record['stats']['hits']} hits" in head
    assert f"({record['stats']['failures']} failed)" in head


def test_json_is_the_entries_as_they_are_in_the_file(written: Path, record: Any) -> None:
    assert json.loads(inspect(written, as_json=True)[0]) == record["entries"]


def test_an_entry_in_full_has_its_abi_resources_options_and_numbered_source(written: Path, record: Any) -> None:
    entry = record["entries"][1]
    text, matched = inspect(written, entry=entry["digest"][:10])
    assert matched
    assert entry["digest"] in text
    assert re.search(r"^options +-O3$", text, re.MULTILINE)
    assert re.search(r"^ +1 +a +float +4 +8$", text, re.MULTILINE)
    assert re.search(r"registers \d+, shared 0 bytes", text)
    assert "     5 | .visible .entry inspect_second(" in text


def test_a_failed_entry_in_full_has_its_error(written: Path) -> None:
    digest = json.loads(inspect(written, filters=["state=failed"], as_json=True)[0])[0]["digest"]
    text, _ = inspect(written, entry=digest)
    assert "error\n" in text
    assert "frobnicate" in text.split("source\n")[0]


def test_an_empty_cache_is_no_error(rewritten: Rewrite) -> None:
    text, matched = inspect(rewritten(lambda record: record["entries"].clear()))
    assert (matched, "the cache is empty" in text) == (True, True)


def test_fields_that_the_schema_does_not_have_are_passed_over(rewritten: Rewrite) -> None:
    def add(record: Any) -> None:
        record["later"] = record["entries"][0]["later"] = {"any": "thing"}

    assert len(read_snapshot(rewritten(add)).entries) == 3


def test_what_a_terminal_would_obey_is_spelled_out(rewritten: Rewrite) -> None:
    def poison(record: Any) -> None:
        record["entries"][0].update(entry_names=["a\x1b[2Jb\nc"], source="x\x07\ud800", compiler="c\x9b")

    path = rewritten(poison)
    for how in ({}, {"entry": read_snapshot(path).entries[0]["digest"]}):
        text, _ = inspect(path, **how)
        assert not set(text) & {"\x1b", "\x07", "\x9b", "\ud800"}
    assert r"a\x1b[2Jb c" in inspect(path)[0]
    assert printable("a\tb\nc") == "a    b\nc"


# Filters and orders -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        (["state=failed"], ["wrong"]),
        (["entry=second"], ["second"]),
        (["entry=INSPECT_"], ["first", "second", "wrong"]),
        (["name=of a test"], ["first", "second", "wrong"]),
        (["options=-O3"], ["second"]),
        (["uses=3"], ["second"]),
        (["live=1", "state=loaded", "entry=first"], ["first"]),
        (["error=frobnicate"], ["wrong"]),
        (["size=0"], ["wrong"]),
        (["arch=sm_90", "language=cuda"], []),
        (["defines="], ["first", "second", "wrong"]),
    ],
)
def test_filters_must_all_hold(written: Path, filters: Any, expected: Any) -> None:
    assert names(written, filters=filters) == expected
    assert inspect(written, filters=filters)[1] is bool(expected)


def test_a_number_is_filtered_as_a_number(rewritten: Rewrite) -> None:
    def number(record: Any) -> None:
        for entry, uses in zip(record["entries"], (1, 10, 100), strict=True):
            entry["uses"] = uses

    path = rewritten(number)
    assert names(path, filters=["uses=10"]) == ["second"]
    assert names(path, filters=["uses=10.."]) == ["second", "wrong"]
    assert names(path, filters=["uses=2..99"]) == ["second"]


def test_an_age_is_the_time_up_to_the_snapshot(rewritten: Rewrite) -> None:
    def times(record: Any) -> None:
        record["created"] = "2026-01-10T00:00:00+00:00"
        for day, entry in enumerate(record["entries"], 1):
            entry["created"] = f"2026-01-0{day}T00:00:00+00:00"

    path = rewritten(times)
    assert names(path, filters=["age=8d.."]) == ["first", "second"]
    assert names(path, filters=["age=..7d"]) == ["wrong"]


@pytest.mark.parametrize(
    ("sort", "expected"),
    [
        ("entry", ["first", "second", "wrong"]),
        ("name", ["first", "second", "wrong"]),
        ("state", ["wrong", "first", "second"]),
        ("uses", ["first", "wrong", "second"]),
        ("compile_ms", ["second", "wrong", "first"]),
        ("age", ["wrong", "second", "first"]),
        ("idle", ["second", "wrong", "first"]),
    ],
)
def test_entries_are_sorted(rewritten: Rewrite, sort: str, expected: Any) -> None:
    def times(record: Any) -> None:
        first, second, wrong = record["entries"]
        first.update(compile_seconds=3, created="2026-01-01T00:00:00+00:00", last_used="2026-01-01T00:00:00+00:00")
        second.update(compile_seconds=0.5, created="2026-01-02T00:00:00+00:00", last_used="2026-01-09T00:00:00+00:00")
        wrong.update(compile_seconds=2.5, created="2026-01-03T00:00:00+00:00", last_used="2026-01-05T00:00:00+00:00")

    path = rewritten(times)
    assert names(path, sort=sort) == expected
    # Entries that are equal keep their order either way.
    assert sorted(names(path, sort=sort, reverse=True)) == sorted(expected)
    if sort not in ("entry", "state", "uses"):
        assert names(path, sort=sort, reverse=True) == expected[::-1]


@pytest.mark.parametrize("sort", list(KEYS))
def test_every_key_sorts(written: Path, sort: Any) -> None:
    assert sorted(names(written, sort=sort)) == ["first", "second", "wrong"]


def test_without_a_key_the_order_is_the_files(written: Path) -> None:
    assert names(written) == ["first", "second", "wrong"]
    assert names(written, reverse=True) == ["wrong", "second", "first"]


def test_a_filter_without_a_value_is_refused(written: Path) -> None:
    with refused(ptxrt.InvalidArgument, "cache", "--filter", "KEY=VALUE", "'arch'"):
        inspect(written, filters=["arch"])


def test_an_unknown_filter_key_is_refused_with_the_nearest(written: Path) -> None:
    with refused(ptxrt.InvalidArgument, "cache", "--filter", "'archs'", "Did you mean arch?"):
        inspect(written, filters=["archs=sm_90"])


@pytest.mark.parametrize("value", ["", "-1", "1.5", "two", "\u0663", "9" * 5000, "..", "5..x"], ids=range(8))
def test_a_number_filtered_by_no_number_is_refused(written: Path, value: Any) -> None:
    with refused(ptxrt.InvalidArgument, "cache", "--filter", "a whole number after uses="):
        inspect(written, filters=[f"uses={value}"])


def test_an_unknown_order_is_refused_with_the_nearest(written: Path) -> None:
    with refused(ptxrt.InvalidArgument, "cache", "--sort", "'compile'", "Did you mean compiler or compile_ms?"):
        inspect(written, sort="compile")


def test_an_ambiguous_digest_is_refused_with_those_it_fits(rewritten: Rewrite) -> None:
    def twins(record: Any) -> None:
        for index, entry in enumerate(record["entries"]):
            entry["digest"] = f"abc{index}".ljust(64, "0")

    path = rewritten(twins)
    with refused(ptxrt.InvalidArgument, "cache", "--entry", "which 3 do", "abc0", "abc2"):
        inspect(path, entry="abc")
    assert inspect(path, entry="ABC1")[1]
    # A filter may have left one of them only.
    assert inspect(path, entry="abc", filters=["state=failed"])[1]


@pytest.mark.parametrize("digest", ["", "zz"])
def test_a_digest_that_nothing_has_matches_nothing(written: Path, digest: str) -> None:
    assert inspect(written, entry=digest)[1] is False


# Files that are no snapshot ---------------------------------------------------------------------------------------


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    path = str(tmp_path / "nothing.json")
    with refused(ptxrt.InvalidArgument, "cache", path, "No such file"):
        inspect(path)


def test_a_directory_is_refused(tmp_path: Path) -> None:
    with refused(ptxrt.InvalidArgument, "cache", str(tmp_path), "directory"):
        inspect(tmp_path)


def test_a_name_with_a_nul_is_refused() -> None:
    with refused(ptxrt.InvalidArgument, "cache", "a\0b", "a file that can be read"):
        inspect("a\0b")


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "binary"
    path.write_bytes(b"\x7fELF\xff")
    with refused(ptxrt.InvalidArgument, "cache", str(path), "a file that can be read as text"):
        inspect(path)


@pytest.mark.parametrize("cut", [0, 1, 100, -2])
def test_truncated_json_is_refused(written: Path, tmp_path: Path, cut: int) -> None:
    path = tmp_path / "cut.json"
    path.write_text(written.read_text().rstrip()[:cut])
    with refused(ptxrt.InvalidArgument, "cache", str(path), "a complete JSON document"):
        inspect(path)


# Python's own limit lies near 1000, or somewhere else, and every step on the way reaches it at another depth.
@pytest.mark.parametrize("depth", [101, 200, 300, 330, 480, 600, *range(900, 1000, 10), 1500, 5000, 200_000])
@pytest.mark.parametrize("place", ["of the schema", "that the schema does not have"])
def test_json_nested_too_deeply_is_refused(record: Any, tmp_path: Path, depth: Any, place: str) -> None:
    path = tmp_path / "deep.json"
    record["entries"][0]["size" if place == "of the schema" else "later"] = "HERE"
    path.write_text(json.dumps(record).replace('"HERE"', "[" * (depth - 3) + "]" * (depth - 3)))
    with refused(ptxrt.InvalidArgument, "cache", str(path), "JSON"):
        inspect(path, as_json=True)


def test_json_may_be_nested_as_deep_as_a_later_version_may_need(rewritten: Rewrite) -> None:
    path = rewritten(lambda record: record["entries"][0].update(later=json.loads("[" * 97 + "]" * 97)))
    assert "[" * 97 in inspect(path, as_json=True)[0].replace(" ", "").replace("\n", "")


@pytest.mark.parametrize("name", ["\ud800", "a\0\ud800"], ids=ascii)
def test_a_name_with_half_a_character_is_refused(name: str) -> None:
    with refused(ptxrt.InvalidArgument, "cache", name, "a file that can be read"):
        inspect(name)


@pytest.mark.parametrize("text", ["[]", "null", "3", '"schema"', "true", "{}", '{"entries": []}'])
def test_json_of_another_shape_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "other.json"
    path.write_text(text)
    with refused(ptxrt.InvalidArgument, "cache", str(path), "a snapshot of schema 1"):
        inspect(path)


@pytest.mark.parametrize(("schema", "words"), [(2, "a later version"), (0, "an earlier version"), (10**30, "schema")])
def test_another_schema_is_refused(rewritten: Rewrite, schema: int, words: str) -> None:
    path = rewritten(lambda record: record.update(schema=schema))
    with refused(ptxrt.InvalidArgument, "cache", str(path), words):
        inspect(path)


# Some value that is wrong for each place of the schema.
WRONG: dict[str, list[Any]] = {
    "schema": ["1", 1.5, True, None],
    "created": [None, 3, "yesterday", "2026-01-01T00:00:00"],
    "device": [None, [], "sim:0"],
    "device.device": [None, 3],
    "device.name": [None, 3],
    "device.arch": [90],
    "device.driver": [{}],
    "bounds": [3],
    "bounds.max_modules": [-1, "512"],
    "bounds.max_bytes": [1.5, 1 << 70],
    "stats": [[]],
    **{f"stats.{name}": [None, -1] for name in ("hits", "misses", "store_hits", "compiles", "failures", "evictions")},
    "stats.compile_seconds": ["1", -1.0, float("nan"), float("inf"), 10**400],
    "stats.modules": [True],
    "stats.bytes": ["0"],
    "entries": [{}, None],
    "entries[0]": [None, [], 3],
    "entries[0].digest": ["", "xyz", "A" * 64, 3],
    "entries[0].state": ["loading", None],
    "entries[0].name": [3],
    "entries[0].language": [None],
    "entries[0].entry_names": [None, "k"],
    "entries[0].entry_names[0]": [None],
    "entries[0].options": [None, [3]],
    "entries[0].defines": [{}, [["N"]], [["N", 4]], ["N=4"]],
    "entries[0].arch": [None],
    "entries[0].compiler": [None],
    "entries[0].size": [-1],
    "entries[0].created": ["x"],
    "entries[0].last_used": [0],
    "entries[0].uses": [1.0],
    "entries[0].compile_seconds": [None],
    "entries[0].live_kernels": [False],
    "entries[0].source": [None],
    "entries[0].kernels": [[], None],
    "entries[0].kernels.inspect_first": [[]],
    "entries[0].kernels.inspect_first.params": [{}],
    "entries[0].kernels.inspect_first.params[0]": [[]],
    "entries[0].kernels.inspect_first.params[0].offset": [None],
    "entries[0].kernels.inspect_first.params[0].size": ["8"],
    "entries[0].kernels.inspect_first.params[0].kind": [3],
    "entries[0].kernels.inspect_first.params[0].name": [None],
    "entries[0].kernels.inspect_first.resources": [[]],
    **{
        f"entries[0].kernels.inspect_first.resources.{name}": [None]
        for name in ("registers", "shared_bytes", "local_bytes", "constant_bytes", "max_threads")
    },
    "entries[0].kernels.inspect_first.resources.spill_store_bytes": ["0"],
    "entries[0].kernels.inspect_first.resources.spill_load_bytes": [-4],
    "entries[0].error": [3],
}


def steps(place: str) -> list[str | int]:
    return [int(part[1:-1]) if part[0] == "[" else part for part in re.findall(r"\w+|\[\d+\]", place)]


def holder(record: Any, place: str) -> tuple[Any, str | int]:
    *path, last = steps(place)
    for step in path:
        record = record[step]
    return record, last


@pytest.mark.parametrize(("place", "value"), [(place, value) for place, values in WRONG.items() for value in values])
def test_a_field_of_the_wrong_type_is_named(rewritten: Rewrite, place: str, value: Any) -> None:
    def change(record: Any) -> None:
        inside, last = holder(record, place)
        inside[last] = value

    path = rewritten(change)
    with refused(ptxrt.InvalidArgument, "cache", str(path), f"{place}"):
        inspect(path)


@pytest.mark.parametrize("place", [place for place in WRONG if not place.endswith(("]", "inspect_first"))])
def test_a_missing_field_is_named(rewritten: Rewrite, place: str) -> None:
    def remove(record: Any) -> None:
        inside, last = holder(record, place)
        del inside[last]

    path = rewritten(remove)
    name = place if place != "schema" else "'schema'"
    with refused(ptxrt.InvalidArgument, "cache", str(path), f"a field {name}"):
        inspect(path)


def test_the_fields_tested_are_all_that_a_snapshot_has(record: Any) -> None:
    """A new field of the snapshot wants its place in the schema, in docs/cache.md and above."""

    def places(value: Any, where: str) -> set[str]:
        if isinstance(value, dict):
            return {where}.union(*(places(v, f"{where}.{k}" if where else k) for k, v in value.items()))
        if isinstance(value, list):
            return {where} | (places(value[0], f"{where}[0]") if value else set())
        return {where}

    found = {place for place in places(record, "") if place and not place.startswith("device.")}
    assert found == {place for place in WRONG if not place.startswith("device.")}
