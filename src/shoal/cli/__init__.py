"""The command `shoal`: no mathematics here, only words, tables and pictures."""

from __future__ import annotations


def main() -> None:
    """Entry point of the command."""
    from shoal.cli.app import app

    app(prog_name="shoal")
