"""The producer: an ETA message on its way to the broker is recorded and stored instead of sent."""
