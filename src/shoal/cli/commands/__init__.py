"""One file for each command; `shoal.cli.app` registers them."""
