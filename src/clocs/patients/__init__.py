"""Embeddings of patients, the distances between them, and the search for similar ones."""
