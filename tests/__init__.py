"""Tests, and what has to be so before any of them imports torch."""

import os

# One thread each for torch and NumPy, as simulated sites have. Two processes test at the same time, on two cores:
# threads would wait for each other's, and training take many times as long. Tests about threads ask for as many as
# they need.
os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
