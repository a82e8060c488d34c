"""`sealed`: keys shared among the sites; `protection` is where to begin."""
