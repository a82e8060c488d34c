"""Training in a process of its own: jobs, the worker, and what it does."""
