"""Files with checksums, and folders that have one owner."""

from __future__ import annotations

import fcntl
import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

import tomllib

from shoal._files import private, replace, sync_folder
from shoal.errors import InvalidInput

__all__ = ["hold", "lock", "private", "replace", "replace_summed", "sync_folder", "table", "whole"]

SUM_BYTES = 32


def replace_summed(path: Path, pieces: Iterable[bytes]) -> None:
    """The same with a checksum at the end, by which damage is noticed."""
    total = hashlib.sha256()

    def summed() -> Iterable[bytes]:
        for piece in pieces:
            total.update(piece)
            yield piece
        yield total.digest()

    replace(path, summed())


def table(path: str | Path) -> dict[str, Any]:
    """What a TOML file says."""
    try:
        return tomllib.loads(Path(path).read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidInput(f"{path} must be a TOML file that can be read: {error}") from None


def whole(path: Path) -> bool:
    """Whether a file that `replace_summed` wrote is still as it was."""
    total, left = hashlib.sha256(), path.stat().st_size - SUM_BYTES
    with open(path, "rb") as file:
        while left > 0 and (block := file.read(min(left, 1 << 20))):
            total.update(block)
            left -= len(block)
        return left == 0 and file.read() == total.digest()


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
        raise InvalidInput(f"{folder} must belong to one {whose}: another process uses it")
    return file
