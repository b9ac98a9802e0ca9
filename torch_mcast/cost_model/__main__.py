"""`python -m torch_mcast.cost_model` = `torch-mcast estimate`."""

import sys

from torch_mcast.cost_model.cli import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
