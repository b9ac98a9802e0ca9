"""`python -m torch_mcast.engine` = `torch-mcast engine`."""

import sys

from torch_mcast.engine.cli import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
