"""The coordinator process: sessions, rounds, store. It imports the library and never the node."""
