"""The core of the delay store: what every user needs. It does not import the folders of the other capabilities."""
