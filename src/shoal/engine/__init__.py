"""The engine: from the likelihood ratio of one report to certified answers, one file a stage.

Read in this order: `numeric`, `ratio` (with `laplace` and `moments`), `levels`, `law`, `rounds`, `compose`, `certify`,
`gaussian`, `rdp`; for crowds of which nothing is known `panels`, `spread`, `prices`, `mixture`; for samples
of records `swap` and `attacks`. Private: what users
need is in `shoal` itself.
"""
