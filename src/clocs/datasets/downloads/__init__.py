"""Where datasets are published, and downloading them; apart, as only `clocs data` needs the web."""
