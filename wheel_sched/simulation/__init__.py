"""A deterministic simulator. It runs the product's own code in virtual time, and strikes it with faults from a seed."""
