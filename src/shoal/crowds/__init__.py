"""Who else is there: bounds on rounds whose other users may hold anything.

`exchange` (with `thinning` and `groups`) bounds them from above, `opposite` from below; `replace` goes by way of zero,
or `direct`; `above` answers questions. Private, as the engine is.
"""
