"""`python -m clocs` is `clocs`."""

from clocs.cli.main import main

main()
