"""What the command line and the dashboard share for retry topics: which messages a request means, what a change does,
why a message waits, and what is wrong.

Nothing here prints, asks or ends the process, and nothing imports click. Importing this package imports nothing else,
because the program imports it at each start.
"""
