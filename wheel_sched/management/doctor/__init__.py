"""Checks every setting that a guarantee depends on. A finding says what is wrong, and how to fix it if that is known.

The checks examine first this machine, then the server, then the namespace. Extensions add checks of the server and of
the namespace. When the server cannot be reached, one finding reports this, and the checks that need the server do not
run.
"""
