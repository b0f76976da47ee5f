"""Experiments: the paper's grid as data, its runs in one crash-safe place, and the report.

`paper` holds what was printed, `grid` what has to run, `library` the data, `ledger` what is done,
`runner` does it, `pricing` says how long it takes, `claims` and `report` show it. All but the
report work with torch, numpy, scipy and safetensors alone.
"""
