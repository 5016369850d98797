"""The store on disk: what was compiled once, for all processes and all later ones."""

from __future__ import annotations

from ptxrt.store._files import inside, replace
from ptxrt.store._locks import locked
from ptxrt.store._record import SCHEMA, Record, Request
from ptxrt.store.store import FOLDERS, BinaryStore, StoredEntry, bytes_in, current, is_entry, root_of

__all__ = [
    "FOLDERS",
    "SCHEMA",
    "BinaryStore",
    "Record",
    "Request",
    "StoredEntry",
    "bytes_in",
    "current",
    "inside",
    "is_entry",
    "locked",
    "replace",
    "root_of",
]
