"""A study: its settings, what it means for a site, and what both processes derive from it."""
