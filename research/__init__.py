"""Studies on encoders that no user of clocs runs: not part of the installed package."""
