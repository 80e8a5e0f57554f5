"""Attempt counts: how often a message was tried, kept beside the message."""
