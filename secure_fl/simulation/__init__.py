"""`secure-fl run`: a whole federation on this machine."""
