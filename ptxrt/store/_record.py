"""A Binary and what it was made of, as JSON that vouches for itself, and back."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

from ptxrt import files
from ptxrt._version import __version__
from ptxrt.compilers import Binary, EntryInfo, Included, ParamInfo, Report, VariableInfo
from ptxrt.places import Sources

__all__ = ["SCHEMA", "Damaged", "Record", "Request", "digest_of"]

SCHEMA = 1
"""Version of the folder's layout, of the key and of the JSON: another one has folders of its own."""

_Info = TypeVar("_Info", ParamInfo, Report)


class Damaged(Exception):
    """What is on the disk is not what was written; the argument says how, in words."""


def digest_of(data: bytes) -> str:
    """Return the SHA-256, in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


@dataclass(frozen=True)
class Request:
    """What is asked of a compiler: all that the outcome depends on, but the headers.

    Attributes
    ----------
    backend
        ``"cuda"``, ``"hip"`` or ``"sim"``: of CUDA C++ sim wants PTX, a CUDA device a cubin.
    language, name, defines, entry, options
        The source's, and as given to :func:`ptxrt.load`. `entry` is what was asked for first; of PTX, which is compiled
        whole, it is no part of the key.
    source
        SHA-256 of language, text and defines.
    arch
        With all flags: ``"gfx90a:sramecc+:xnack-"``.
    compiler
        Name and version.
    effective
        What the compiler adds to the options: see :meth:`ptxrt.backends.Backend.effective_options`.
    """

    backend: str
    language: str
    source: str
    name: str | None
    defines: tuple[tuple[str, str], ...]
    entry: str
    options: tuple[str, ...]
    arch: str
    compiler: str
    effective: tuple[str, ...] = ()

    @property
    def shown(self) -> str:
        """What messages call it."""
        return self.name or self.entry

    def key(self) -> str:
        """Return the digest that a store and a module cache know it by."""
        # ptxrt's version, for what it reads out of a text or a log: parameter tables, resources.
        parts = [SCHEMA, __version__, self.backend, self.language, self.source, self.options, self.arch, self.compiler]
        if self.language != "ptx":
            # A C++ template is instantiated for the entry asked for.
            parts += [self.entry, self.effective]
        return digest_of(json.dumps(parts).encode("utf-8", "surrogatepass"))


@dataclass(frozen=True)
class Record:
    """What the JSON beside a binary says.

    Attributes
    ----------
    key
        The entry's name: the request's, with what the headers held.
    request
        What was asked for.
    headers
        Each file that the compiler read or looked for, with the SHA-256 of what it held, None where there was none.
    created
        Seconds since 1970.
    file, sha256, size
        The binary beside: its name, digest and bytes.
    binary
        All else that the compile gave, as JSON has it.
    """

    key: str
    request: Request
    headers: Mapping[str, str | None]
    created: float
    file: str
    sha256: str
    size: int
    binary: Mapping[str, Any]

    @classmethod
    def of(cls, key: str, request: Request, binary: Binary, headers: Mapping[str, str | None]) -> Record:
        """Return the record of a compile that has just ended."""
        # The text of PTX is with whoever asks for it.
        held = asdict(replace(binary, code=b"", ptx=None if request.language == "ptx" else binary.ptx))
        del held["code"], held["included"]
        return cls(
            key,
            request,
            headers,
            time.time(),
            f"kernel.{binary.kind}",
            digest_of(binary.code),
            len(binary.code),
            held,
        )

    def made(self, code: bytes, text: str) -> Binary:
        """Return the Binary again. `text` is the source's, and `code` what is beside.

        Raises
        ------
        Damaged
            For other code than was written, or fields that a Binary does not have.
        """
        if len(code) != self.size or digest_of(code) != self.sha256:
            raise Damaged(f"{self.file} is not what was written: its SHA-256 differs")
        held = dict(self.binary)
        try:
            held["options"] = tuple(held["options"])
            held["entries"] = {name: _entry(info) for name, info in held["entries"].items()}
            held["reports"] = {name: _made(Report, report) for name, report in held["reports"].items()}
            held["variables"] = {name: _variable(info) for name, info in held["variables"].items()}
            held["sources"] = Sources(tuple((name, whole) for name, whole in held["sources"]["texts"]))
            held["ptx"] = text if self.request.language == "ptx" else held["ptx"]
            return Binary(code=code, included=Included(tuple(self.headers)), **held)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise Damaged(f"entry.json is none of schema {SCHEMA}: {error!r}") from error

    def encoded(self) -> bytes:
        """Return the file."""
        return files.framed("entry", json.dumps(asdict(self), ensure_ascii=True, indent=1).encode("ascii"))

    @classmethod
    def decoded(cls, data: bytes, key: str | None = None) -> Record:
        """Read the file, which must be of `key` where that is given.

        Raises
        ------
        Damaged
            If it is not what :meth:`encoded` gave.
        """
        body = files.body_of("entry", data)
        if body is None:
            raise Damaged("entry.json is not what was written: its SHA-256 differs")
        try:
            held = json.loads(body)
            request = held.pop("request")
            for name in ("options", "effective"):
                request[name] = tuple(request[name])
            request["defines"] = tuple((macro, value) for macro, value in request["defines"])
            record = cls(request=Request(**request), **held)
            if os.path.basename(record.file) != record.file:
                raise ValueError(f"file: {record.file}")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise Damaged(f"entry.json is none of schema {SCHEMA}: {error}") from error
        if key is not None and record.key != key:
            raise Damaged(f"entry.json is that of {record.key!s:.16}")
        return record


def _entry(held: Mapping[str, Any]) -> EntryInfo:
    params = held["params"]
    return EntryInfo(held["name"], None if params is None else tuple([_made(ParamInfo, param) for param in params]))


def _made(kind: type[_Info], held: dict[str, Any]) -> _Info:
    """Return ``kind(**held)``, of all fields. A frozen dataclass sets each by a call, a third of the time of a look."""
    if held.keys() != kind.__dataclass_fields__.keys():
        raise TypeError(f"{kind.__name__}: {', '.join(held)}")
    new = object.__new__(kind)
    vars(new).update(held)
    return new


def _variable(held: Mapping[str, Any]) -> VariableInfo:
    shape = held["shape"]
    return VariableInfo(held["symbol"], held["type"], None if shape is None else tuple(shape))
