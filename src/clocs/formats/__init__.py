"""File formats of ECGs, one per module; `read` reads and finds recordings of all of them."""
