"""Files that are written whole or not at all, even if the process is killed or the disk is full."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterable
from pathlib import Path
from typing import IO


def private(path: Path) -> IO[bytes]:
    """An empty file that only its owner can read, open for writing."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")


def replace(path: Path, pieces: Iterable[bytes], *, only_writer: bool = True) -> None:
    """Write a file that only its owner can read; a crash leaves the old file or the new one.

    Args:
        path: The file.
        pieces: The content, in order.
        only_writer: Whether no other process writes this file, so that a draft left by a crash can be overwritten.

    Raises:
        OSError: If the file cannot be written.
    """
    draft = path.with_name(f"{path.name}.draft" if only_writer else f".{path.name}.{secrets.token_hex(8)}")
    # `private` refuses a file that exists, so a draft left by a crash is removed first.
    draft.unlink(missing_ok=True)
    try:
        with private(draft) as file:
            for piece in pieces:
                file.write(piece)
            # The content must reach the disk before the name does: a loss of power would leave an empty file.
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make creations, renames and removals in a folder permanent."""
    if os.name == "nt":
        return  # Windows opens no folders; its file system does this by itself
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
