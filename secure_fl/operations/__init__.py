"""What it takes to run a party: its file, its health, its end."""
