"""The store on disk: what was compiled once, for all processes and all later ones."""

from __future__ import annotations

from ptxrt.store._files import replace
from ptxrt.store._locks import locked
from ptxrt.store._record import SCHEMA, Record, Request
from ptxrt.store.store import BinaryStore, StoredEntry, current

__all__ = ["SCHEMA", "BinaryStore", "Record", "Request", "StoredEntry", "current", "locked", "replace"]
