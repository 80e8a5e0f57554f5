"""Functions for retry topics that the command line and the dashboard share.

They select messages, change them, say why a message waits, and find problems. They do not print, ask the user or end
the process, and do not import click. This module imports nothing, because each start of the program imports it.
"""
