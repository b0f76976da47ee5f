"""Encoders in the shapes that other libraries expect."""
