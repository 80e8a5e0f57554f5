"""The dashboard's pages, API calls and actions for retry topics.

Each folder but `templates` is about one kind of thing, such as topics or messages, and has `PAGES`, `CALLS`, `ACTIONS`
and `PANELS`. `part` collects them.
"""
