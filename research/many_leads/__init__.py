"""The comparison of encoders that see many leads at once: what is trained, scored and reported."""
