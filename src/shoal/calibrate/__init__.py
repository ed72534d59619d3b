"""The smallest noise, the largest number of rounds, the smallest number of users for a privacy target.

    parameters.py   `sigma`, `rounds` and `users`
    target.py       what is to be met, and where a search starts
    searching.py    the searches, over real and over whole numbers

Targets are an epsilon at a delta, a true positive rate at a false positive rate, or an advantage. Every function
returns a value for which the *upper* bound was computed and is at most the target: a search narrows a bracket whose
safe end is always such a value. Brackets expand by themselves, so no starting point is needed; interpolation only
chooses where to look next.
"""

from shoal.calibrate.parameters import rounds, sigma, users
from shoal.calibrate.searching import Point

__all__ = ["Point", "rounds", "sigma", "users"]
