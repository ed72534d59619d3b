"""Files that are there whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path


def replace(path: Path, pieces: Iterable[bytes]) -> None:
    """Write `path` so that a crash leaves the old file or the new one, on disk, never a part of it."""
    draft = path.with_name(path.name + ".draft")
    with open(draft, "wb") as file:
        for piece in pieces:
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make creations, renames and removals in a folder last."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
