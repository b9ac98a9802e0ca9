"""Old name of torch_mcast.cost_model, kept for one release: `python -m torch_mcast.model`."""

import sys
import warnings

from torch_mcast.cost_model import aggregation, cli, offload

__all__ = ["aggregation", "cli", "offload"]

warnings.warn(
    "torch_mcast.model is deprecated and will be removed in the next release; "
    "use torch_mcast.cost_model",
    FutureWarning,  # is shown by default, also for an import in a library
    stacklevel=2,
)

if __name__ == "__main__":
    sys.exit(cli.main(sys.argv[1:]))
