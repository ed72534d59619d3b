"""Bounds on rounds whose other users may hold anything.

`exchange` (with `thinning` and `groups`) bounds a round from above, `opposite` from below; `replace` goes by way of
zero, or `direct`; `evaluate` answers questions. Private, as all of `bounds` is.
"""
