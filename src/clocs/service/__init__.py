"""The service: embeddings, predictions and neighbours of posted ECGs over HTTP."""
