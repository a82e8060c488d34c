"""The seam between messages and how they travel: gRPC between machines, plain calls inside one process."""
