"""Arithmetic and keys that more than one protection uses."""
