"""Schema history of the coordinator's store, applied in order when a store is opened."""
