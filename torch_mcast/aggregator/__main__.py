"""`python -m torch_mcast.aggregator` = `torch-mcast aggregator`."""

import sys

from torch_mcast.aggregator.cli import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
