"""Files that are there whole or not at all, and folders that have one owner."""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import IO

SUM_BYTES = 32


def private(path: Path) -> IO[bytes]:
    """An empty file that only its owner can read, open for writing."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")


def replace(path: Path, pieces: Iterable[bytes]) -> None:
    """Write `path`, for its owner alone, so that a crash leaves the old file or the new one, never a part of it."""
    draft = path.with_name(path.name + ".draft")
    draft.unlink(missing_ok=True)
    with private(draft) as file:
        for piece in pieces:
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    sync_folder(path.parent)


def replace_summed(path: Path, pieces: Iterable[bytes]) -> None:
    """The same with a checksum at the end, by which damage is noticed."""
    total = hashlib.sha256()

    def summed() -> Iterable[bytes]:
        for piece in pieces:
            total.update(piece)
            yield piece
        yield total.digest()

    replace(path, summed())


def whole(path: Path) -> bool:
    """Whether a file that `replace_summed` wrote is still as it was."""
    total, left = hashlib.sha256(), path.stat().st_size - SUM_BYTES
    with open(path, "rb") as file:
        while left > 0 and (block := file.read(min(left, 1 << 20))):
            total.update(block)
            left -= len(block)
        return left == 0 and file.read() == total.digest()


def sync_folder(folder: Path) -> None:
    """Make creations, renames and removals in a folder last."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def hold(file: IO[str], *, wait: bool = True) -> bool:
    """Lock an open file until it is closed or the process ends; False if another process has it and `wait` is not."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    return True


def lock(folder: Path, *, whose: str) -> IO[str]:
    """The folder for this process alone, until the file that is returned is closed or the process ends."""
    file = open(folder / "lock", "w")  # noqa: SIM115 (held open on purpose)
    if not hold(file, wait=False):
        file.close()
        raise ValueError(f"{folder} must belong to one {whose}: another process uses it")
    return file
