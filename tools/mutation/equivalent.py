"""The mutants that no test can notice, each with the reason: they compute what the kernel computes.

The key is family, kernel, the line as it was and as it became.
"""

from __future__ import annotations

EQUIVALENT: dict[tuple[str, str, str, str], str] = {}
