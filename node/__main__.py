"""Run the node process."""

import sys

from node.main import main

sys.exit(main())
