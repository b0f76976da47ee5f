"""Stores cut into frames, ready for a device."""
