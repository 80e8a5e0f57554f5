"""The producer's side: it stores an ETA message instead of sending it to the broker."""
