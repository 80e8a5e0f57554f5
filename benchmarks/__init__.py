"""Benchmarks: `python -m benchmarks store` and `python -m benchmarks dispatch`.

Each starts a server of its own, measures its baseline in the same run, takes medians of interleaved rounds, and judges
its figures by gates that are part of the code. docs/benchmarks.md says what each figure means.
"""
