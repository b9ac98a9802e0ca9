"""`python -m torch_mcast.simulate` = `torch-mcast simulate`."""

import sys

from torch_mcast.simulate.cli import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
