"""The service: embeddings, predictions and neighbors of posted ECGs over HTTP."""
