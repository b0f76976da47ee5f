"""What the embeddings of any encoder hold: noise, other hospitals, identity, privacy."""
