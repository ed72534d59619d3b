"""Many rounds of different mechanisms: their ledger and its privacy, and budgets for rounds chosen on the way.

ledger.py    `Accountant`: enters rounds, answers questions about all of them, saves and restores itself
filter.py     `Filter`: a budget for rounds that are chosen from anything seen
odometer.py   `Odometer`: what was spent, valid whenever the run stops
rules.py      the ways in which filters and odometers add up
merging.py   many numbers of users are analysed as a few classes of rounds
"""

from shoal.accountant.filter import Filter
from shoal.accountant.ledger import STATE_VERSION, Accountant, Entry
from shoal.accountant.odometer import Odometer

__all__ = ["STATE_VERSION", "Accountant", "Entry", "Filter", "Odometer"]
