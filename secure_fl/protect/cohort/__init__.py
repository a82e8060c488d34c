"""Who takes part in a protected round, and how many it takes."""
