"""Files with checksums, and folders that have one owner."""

from __future__ import annotations

import fcntl
import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

import tomllib

from shoal._files import private, replace, sync_folder
from shoal.errors import DataError

__all__ = ["hold", "is_whole", "lock_folder", "private", "read_toml", "replace", "replace_summed", "sync_folder"]

SUM_BYTES = 32


def replace_summed(path: Path, pieces: Iterable[bytes]) -> None:
    """Write a file whole or not at all, with a checksum at its end.

    Args:
        path: the file.
        pieces: its content.
    """
    digest = hashlib.sha256()

    def summed() -> Iterable[bytes]:
        for piece in pieces:
            digest.update(piece)
            yield piece
        yield digest.digest()

    replace(path, summed())


def is_whole(path: Path) -> bool:
    """Whether a file that `replace_summed` wrote is still as it was."""
    digest, remaining = hashlib.sha256(), path.stat().st_size - SUM_BYTES
    with open(path, "rb") as file:
        while remaining > 0 and (block := file.read(min(remaining, 1 << 20))):
            digest.update(block)
            remaining -= len(block)
        return remaining == 0 and file.read() == digest.digest()


def read_toml(path: str | Path) -> dict[str, Any]:
    """The content of a TOML file; `DataError` if it is none."""
    try:
        return tomllib.loads(Path(path).read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise DataError(f"{path} must be a TOML file that can be read: {error}") from None


def hold(file: IO[str], *, wait: bool = True) -> bool:
    """Lock an open file until it is closed or the process ends.

    Args:
        file: the open file.
        wait: whether to wait while another process has it.

    Returns:
        False if another process has it.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    return True


def lock_folder(folder: Path, *, party: str) -> IO[str]:
    """Take a folder for this process only.

    Args:
        folder: the folder.
        party: the party whose folder it is, for the message.

    Returns:
        The lock, held until this file is closed or the process ends.

    Raises:
        DataError: another process has it.
    """
    file = open(folder / "lock", "w")  # noqa: SIM115 (held open on purpose)
    if not hold(file, wait=False):
        file.close()
        raise DataError(f"{folder} must belong to one {party}: another process uses it")
    return file
