"""`python -m clocs` is `clocs`."""

from clocs.cli import main

main()
