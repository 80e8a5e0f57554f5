"""History: a bounded record of what happened, for people and reports."""
