"""The node process: session, round, policy, store. It imports the library and never the coordinator."""
