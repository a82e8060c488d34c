"""secure-fl: federated learning in which nobody ever sees one site's update."""

import os

__version__ = "0.1.0"

# gRPC's core writes lines of its own to standard error. What went wrong reaches our errors and logs, in our words.
# It reads this when it is loaded, so it stands before anything that imports it. Whoever sets it sees gRPC's lines.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
