"""What tests of several files share and is made once."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from helpers import run


class Reproduced(NamedTuple):
    """What `shoal reproduce all` wrote and said."""

    folder: Path
    result: Any


@pytest.fixture(scope="session")
def reproduced(tmp_path_factory: pytest.TempPathFactory) -> Reproduced:
    """The command as its help prints it, in an empty folder."""
    home, before = tmp_path_factory.mktemp("reproduced"), Path.cwd()
    os.chdir(home)
    try:
        result = run("reproduce", "all")
    finally:
        os.chdir(before)
    return Reproduced(home / "paper", result)
