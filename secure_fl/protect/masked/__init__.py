"""`masked`: pairwise masks with recovery; `protection` is where to begin."""
