"""Encoders: frames to embeddings, for all members of a fleet at once; one file each."""
