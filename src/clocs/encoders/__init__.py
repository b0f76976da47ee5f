"""Encoders: frames to embeddings, for all members at once; one file each."""
