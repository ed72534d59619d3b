"""`python -m shoal.cli` is the command too."""

from shoal.cli import main

main()
