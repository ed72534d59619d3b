"""The command `shoal record`."""

from __future__ import annotations

from typing import Annotated

import typer

from shoal import _validate
from shoal._written import number
from shoal.cli import options as opt
from shoal.cli import screen
from shoal.cli.mechanism_options import Described, describes_mechanism
from shoal.errors import InvalidInput
from shoal.mechanisms import Crowd
from shoal.records import DETAILS, Document, Format


@describes_mechanism
def record_command(
    *,
    delta: opt.Delta,
    described: Described,
    rounds: opt.RoundsOption = "1",
    crowd: Annotated[
        Crowd | None,
        typer.Option(help="What the other users hold: anything, or one vector (an assumption). [default: any]"),
    ] = None,
    adjacency: opt.AdjacencyOption = "zero-out",
    method: opt.MethodOption = "tight",
    document: Annotated[
        Document,
        typer.Option(help="An entry for the registry of deployments, a checklist, or the guarantee alone."),
    ] = "registry",
    format: Annotated[Format, typer.Option(help="The registry itself takes YAML.")] = "yaml",
    detail: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=TEXT",
            help="A field of the registry entry that only people can fill, such as name=Usage; repeat for more.",
        ),
    ] = None,
) -> None:
    """Write a guarantee as a record that others can check.

    The registry is the Differential Privacy Deployments Registry of OpenDP. The checklist follows NIST SP 800-226 and
    "How to DP-fy ML". What only people can know is marked as open.

    Examples:

    \b
    shoal record shuffle --users 60000 --sigma 9.48 --delta 1e-6 --rounds 7 \\
        --detail name="Screen time" --detail data_curator_type=Industry

    \b
    shoal record poisson --rate 0.01 --sigma 1 --delta 1e-6 --rounds 10000 \\
        --document checklist --format markdown
    """
    details = _details(detail or [])
    small, count = _validate.delta(number("delta", delta)), _validate.rounds(number("rounds", rounds))
    m, *_ = described.variants(crowd or ("any" if described.cls.crowd_matters else None), adjacency)
    with screen.working(m.label):
        statement = m.statement(delta=small, rounds=count, method=method)
    screen.print_document(statement.record(document, format, **details))


def _details(texts: list[str]) -> dict[str, str]:
    """Return the details by their names."""
    details = {}
    for text in texts:
        name, mark, value = text.partition("=")
        if not mark or name not in DETAILS:
            raise InvalidInput(f"detail must be NAME=TEXT with a NAME of {', '.join(DETAILS)}, got {text!r}")
        details[name] = value
    return details
