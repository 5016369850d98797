"""Where the state spaces lie among generic addresses; global memory has no window."""

from __future__ import annotations

__all__ = ["FUNCTION_WINDOW", "LOCAL_WINDOW", "PARAM_WINDOW", "SHARED_WINDOW"]

SHARED_WINDOW = 1 << 56
LOCAL_WINDOW = 1 << 57
PARAM_WINDOW = 1 << 58
"""The lower 32 bits are the place within."""

FUNCTION_WINDOW = 1 << 59
"""Where functions have their addresses: nothing can be read or written there."""
