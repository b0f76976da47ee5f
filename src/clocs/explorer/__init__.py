"""The explorer: a local web page for browsing patients, their ECGs and their nearest neighbors."""
