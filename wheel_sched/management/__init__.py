"""What the command line and the dashboard share: every decision behind a command, as functions that return data.

Nothing here prints, asks or ends the process, and nothing imports click. Importing this package imports nothing else,
because the program imports it at each start.
"""
