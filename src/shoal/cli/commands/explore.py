"""The command `shoal explore`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from shoal import _extras


def explore_command(
    link: Annotated[
        str, typer.Argument(help="A link copied from the page, or its part after #: the page opens in that state.")
    ] = "",
    budget: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="An accountant's state (JSON) or an analyst's folder, for the budget tab."),
    ] = None,
    browser: Annotated[bool, typer.Option(help="Open the browser, or only print the address.")] = True,
) -> None:
    """Open a page with sliders, pictures and sentences, and the calls that give the same numbers.

    The page runs on this machine only and loads nothing from elsewhere. Ctrl-C ends it.

    Examples:

    \b
    shoal explore

    \b
    shoal explore 'mechanism=shuffle&users=1000&sigma=3' --no-browser
    """
    # The server is an extra; without it the help of this command must still come.
    _extras.need("explore needs starlette and uvicorn", "explore", "starlette", "uvicorn")
    from shoal.web import server

    text = None
    if budget is not None:
        from shoal.web.budget import text_of

        text = text_of(budget)
    server.run(show=browser, fragment=link.rpartition("#")[2], budget=text)
