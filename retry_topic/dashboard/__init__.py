"""Retry topics in the dashboard: topics, messages, dead letters, policies; as pages, calls of the API and actions.

Each folder has one kind of thing, and names its `PAGES`, `CALLS`, `ACTIONS` and `PANELS`. `part` lists them.
"""
