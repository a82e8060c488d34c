"""`encrypted`: sums of ciphertexts under a key that the coordinator never has; `scheme` is where to begin."""
