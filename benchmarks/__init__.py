"""Benchmarks that compare each part of the project with similar software: `python -m benchmarks NAME`.

Each benchmark starts the servers that it needs, and measures a baseline in the same run. The compared programs take
turns in several rounds, and a figure is a median over the rounds. A gate is a bound in the code that a figure must
keep. docs/internals/figures.md says what each figure means.
"""
