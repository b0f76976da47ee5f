"""Learning encoders without labels."""
