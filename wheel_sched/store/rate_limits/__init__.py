"""Rate limits of topics and circuits of destinations, one for all dispatchers."""
