"""What a site spends in privacy, and the proof of it."""
