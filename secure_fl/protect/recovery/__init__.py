"""`masked` with `protection.recovery`: sums of whoever is left; `protection` is where to begin."""
