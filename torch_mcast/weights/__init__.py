"""Sends the weights of a trainer to inference workers.

    # rank 0, the trainer                         # the other ranks, inference workers
    version = weights.send(model.state_dict())    for name, tensor in weights.receive():
                                                      ...

A version goes from rank 0 to one worker of each host by reliable multicast. That worker checks every tensor
and seals the memory that it has written; the other workers of its host map the same memory. docs/weights.md
is the guide.
"""

from torch_mcast.weights._channel import Channel, receive, send
from torch_mcast.weights._errors import ChecksumError, WeightsError
from torch_mcast.weights._worker import Received

__all__ = ["Channel", "ChecksumError", "Received", "WeightsError", "receive", "send"]
