"""Fixtures of the store's tests."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from helpers import Patch


@pytest.fixture(autouse=True)
def _quick_disk(monkeypatch: Patch) -> None:
    """Leave out the wait for the disk; one test looks whether the store asks for it."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where a store will be."""
    return tmp_path / "store"


@pytest.fixture
def header(tmp_path: Path) -> Path:
    """A header that was written long enough ago for a compile of now."""
    path = tmp_path / "mine.h"
    path.write_text("#define NAME one\n")
    time.sleep(0.03)
    return path
