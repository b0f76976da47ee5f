"""clocs."""
