"""Benchmarks of each part, beside its peers: `python -m benchmarks NAME`.

Each benchmark starts its own server, measures a baseline in the same run, takes medians of rounds that take turns, and
judges its figures by gates that are part of the code. docs/benchmarks.md says what each figure means.
"""
