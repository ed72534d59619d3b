"""A backup of an analyst's folder, without the keys that open reports; these go to a place of their own.

A backup that holds the private keys of all epochs opens the reports of epochs that are over, after the analyst itself
has forgotten how. So the keys are copied apart, to a folder that holds those of the present and later epochs only, and
which is brought up to date after each round. Who keeps old copies of *that* folder keeps the ability to open.
"""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from shoal.deployment import files
from shoal.deployment.analyst.analyst import DATABASE, Analyst
from shoal.deployment.analyst.keystore import KEYS, PASSWORD, PUBLIC_KEYS, SIGN
from shoal.deployment.analyst.ledger import HEAD
from shoal.deployment.analyst.rosters import ROSTERS
from shoal.errors import InvalidInput

PLAIN_FILES = (SIGN, PASSWORD, f"{KEYS}/{PUBLIC_KEYS}", "node.toml")
"""Files that do not change."""


def back_up(analyst: Analyst, target: Path, *, key_folder: Path | None = None) -> None:
    """Copy an analyst's folder, also while another process serves it.

    Args:
        analyst: the analyst.
        target: the backup, whole or not at all; an earlier one is replaced.
        key_folder: the folder for the keys of the present and later epochs; earlier ones are removed from it.

    Raises:
        InvalidInput: the target is something else than a backup.
    """
    folder = analyst.folder
    if target.exists() and not (target / DATABASE).exists():
        raise InvalidInput(f"{target} must be a new folder or an earlier backup, it is something else")
    draft, old = (target.with_name(target.name + suffix) for suffix in (".draft", ".old"))
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True, mode=0o700)
    # The head before the lines: a head that is behind is put right at the next start, one that is ahead is damage.
    _copy(folder / HEAD, draft / HEAD)
    with files.private(draft / DATABASE):
        pass
    with contextlib.closing(sqlite3.connect(draft / DATABASE)) as copy:
        analyst.database.connection.backup(copy)
    # After the lines, which name them.
    for path in (*(folder / ROSTERS).iterdir(), *(folder / name for name in PLAIN_FILES)):
        if path.exists():
            _copy(path, draft / path.relative_to(folder))
    shutil.rmtree(old, ignore_errors=True)
    if target.exists():
        target.rename(old)
    draft.rename(target)
    files.sync_folder(target.parent)
    shutil.rmtree(old, ignore_errors=True)
    if key_folder is not None:
        _copy_keys(analyst, key_folder)


def _copy_keys(analyst: Analyst, key_folder: Path) -> None:
    """Bring the keys' own folder up to date."""
    key_folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    epoch = analyst.settings.epoch_of(analyst.next_round)
    for path in key_folder.glob("*.key"):
        if int(path.stem) < epoch:
            path.unlink()
    for path in (analyst.folder / KEYS).glob("*.key"):
        if int(path.stem) >= epoch and not (key_folder / path.name).exists():
            _copy(path, key_folder / path.name)
    files.sync_folder(key_folder)


def _copy(source: Path, target: Path) -> None:
    """Copy a file so that only its owner can read it."""

    def blocks() -> Iterator[bytes]:
        with open(source, "rb") as file:
            yield from iter(lambda: file.read(1 << 20), b"")

    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    files.replace(target, blocks())
