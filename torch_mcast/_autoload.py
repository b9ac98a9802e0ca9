"""Entry points that torch calls by itself: `torch.backends` at the end of `import torch` (all
versions), `torch.distributed.backends` when the name "mcast" is first used (torch 2.14 on).

An exception here would break `import torch` for everybody in the environment, so none escapes. If
the registration fails, torch reports an unknown backend, and `import torch_mcast` gives the reason.
"""

from __future__ import annotations


def autoload() -> None:
    try:
        from torch_mcast._register import register

        register()
    except Exception:  # noqa: BLE001 - see above
        pass
