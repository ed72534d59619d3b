"""Bounds on rounds whose other users may hold anything.

`exchange` (with `thinning` and `groups`) bounds a round from above, `opposite` from below. `replace` bounds a
replacement by two moves through zero, `direct` in one step. `evaluate` answers questions. All of it is private.
"""
