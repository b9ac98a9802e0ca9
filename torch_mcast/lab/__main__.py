"""`python -m torch_mcast.lab` = `torch-mcast lab`."""

import sys

from torch_mcast.lab.cli import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
