"""The training engine, checkpoints and the leak guard."""
