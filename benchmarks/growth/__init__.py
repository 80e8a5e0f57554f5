"""How cost grows with size: measured as far as this machine allows, computed by a checked model beyond.

`python -m benchmarks growth` runs the cases; docs/internals/growth.md shows what they gave.
"""
