"""A fuzzer for everything that clocs reads: damaged files give a `ClocsError`, or what they held.

`script/fuzz` runs it; `targets` is the table of what is read, `mutations` does the damage.
"""
