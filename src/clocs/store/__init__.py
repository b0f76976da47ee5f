"""Prepared recordings on disk, and how they get there."""
