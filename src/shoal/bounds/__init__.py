"""The mathematics: from the likelihood ratio of one report to certified answers, one file for each stage.

Read in this order: `numeric`, `ratio` (with `laplace` and `moments`), `grid`, `mean_law`, `round`, `composition`,
`certify`, `gaussian`, `rdp`; then `central` (samples of records) and `anycrowd` (crowds about which nothing is known).
Private: what users need is in `shoal` itself.
"""
