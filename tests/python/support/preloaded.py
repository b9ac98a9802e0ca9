"""Imported by the process from which ranks of jobs are forked: loads the extension once, which makes no thread and
no socket."""

import torch_mcast

torch_mcast.Options()
