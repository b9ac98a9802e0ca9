"""python -m torch_mcast = torch-mcast."""

import sys

from torch_mcast.cli import main

sys.exit(main())
