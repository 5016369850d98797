"""``python -m ptxrt`` is the command ``ptxrt``."""

import sys

from ptxrt.commands.cli import main

if __name__ == "__main__":
    sys.exit(main())
