"""secure-fl: federated learning in which nobody ever sees one site's update."""

__version__ = "0.1.0"
