"""The core of the delay store: what every user needs. It imports none of the rooms of other capabilities."""
