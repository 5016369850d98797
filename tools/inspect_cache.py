"""``python tools/inspect_cache.py ...`` is ``ptxrt cache ...``, from a checkout that need not be installed."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from ptxrt.commands.cli import main

if __name__ == "__main__":
    sys.exit(main(["cache", *sys.argv[1:]]))
