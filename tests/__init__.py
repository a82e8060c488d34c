"""Tests, and what has to be so before any of them imports torch."""

import os

# Two processes test at the same time, on two cores. Threads of torch would wait for each other's, and keep a core busy
# while they do: training then takes several times as long. Tests about threads ask torch for as many as they need.
os.environ.setdefault("OMP_NUM_THREADS", "1")
