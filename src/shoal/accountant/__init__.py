"""Many rounds of different mechanisms: their ledger, and the privacy of all that it lists.

ledger.py    `Accountant`: enters rounds, answers questions about all of them, saves and restores itself
merging.py   many numbers of users are analysed as a few classes of rounds
"""

from shoal.accountant.ledger import STATE_VERSION, Accountant, Entry

__all__ = ["STATE_VERSION", "Accountant", "Entry"]
