"""What may be opened together: rows of combinations, and the guard over them."""
