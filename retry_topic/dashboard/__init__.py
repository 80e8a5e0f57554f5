"""The dashboard's pages, API calls and actions for retry topics.

Each folder has those of one kind of thing, such as topics or messages, in `PAGES`, `CALLS`, `ACTIONS` and `PANELS`.
`part` collects them.
"""
