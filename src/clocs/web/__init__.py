"""HTTP plumbing that the explorer and the service share: connections, tokens, uploads."""
