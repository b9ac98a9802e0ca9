"""python -m torch_mcast.doctor = torch-mcast doctor."""

import sys

from torch_mcast.doctor import main

sys.exit(main())
