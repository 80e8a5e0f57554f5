"""Known ids: an id that a caller has chosen stays known after its item has left."""
