"""`python -m torch_mcast.model` = `torch-mcast model`."""

import sys

from torch_mcast.model.cli import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
