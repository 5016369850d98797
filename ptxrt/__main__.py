"""``python -m ptxrt`` is the command ``ptxrt``."""

import sys

from ptxrt.cli import main

if __name__ == "__main__":
    sys.exit(main())
