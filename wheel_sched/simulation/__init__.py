"""A deterministic simulator: the product's own code in a seeded world, with the faults that hurt."""
