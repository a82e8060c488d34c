"""Run the coordinator process."""

import sys

from coordinator.main import main

sys.exit(main())
