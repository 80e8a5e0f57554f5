"""The core of the delay store: what every tenant needs. It names none of the rooms beside it."""
