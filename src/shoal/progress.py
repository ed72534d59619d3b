"""How long work reports its progress."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, float], None]
"""Called with the next step, in words, and the part of the whole work that is done (0 to 1)."""
