"""The explorer: a local web page on patients, their ECGs and their neighbours.

FastAPI behind, plain ES modules in front, everything served from this package. Imported by
`clocs explore` alone, so that the rest starts without it.
"""
