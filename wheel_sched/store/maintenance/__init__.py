"""Maintenance: back up, restore, reshard and repair a namespace."""
