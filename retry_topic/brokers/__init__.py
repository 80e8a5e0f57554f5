"""The broker protocol, its conformance suite, and one module or package for each broker."""
