"""An audit: the distinguishing game is played by simulation, to try to break a claimed epsilon.

game.py         the crowds, and the reports of a round in both worlds
likelihood.py   the statistics: likelihood ratios, and features where a likelihood takes too long
statistics.py   from counts to a proved lower bound on epsilon
findings.py     `audit`: plays all games, and returns one `Finding` for each
"""

from shoal.audit.findings import CONFIDENCE, Finding, audit
from shoal.audit.game import DIMENSIONS, SHAPES, Game, Reports, crowd
from shoal.audit.statistics import Event, choose, clopper_pearson, lower_bound

__all__ = [
    "CONFIDENCE",
    "DIMENSIONS",
    "SHAPES",
    "Event",
    "Finding",
    "Game",
    "Reports",
    "audit",
    "choose",
    "clopper_pearson",
    "crowd",
    "lower_bound",
]
