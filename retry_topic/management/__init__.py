"""What the command line and the dashboard share for retry topics: which messages a request means, what a change does,
why a message waits, and what ails.

Nothing here prints, asks or ends the process, and nothing imports click. Importing this package imports nothing else,
because each start of the program comes by here.
"""
