"""`python -m torch_mcast.bench` = `torch-mcast bench`."""

import sys

from torch_mcast.cli import main

if __name__ == "__main__":
    sys.exit(main(["bench", *sys.argv[1:]]))
