"""Uploads that rest at the coordinator and are opened afterwards: what `sealed` and `encrypted` have in common."""
