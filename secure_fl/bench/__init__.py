"""Comparable numbers, from commands anybody can run."""
