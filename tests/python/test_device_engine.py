"""Device tensors of ranks whose networking is done by an engine of the host: staged data reaches it
by each access method."""

from __future__ import annotations

import device_ranks
import pytest
import test_device
import test_device_messages
import test_device_reduce

pytest_generate_tests = device_ranks.pytest_generate_tests
device_pools, library, either = device_ranks.device_pools, device_ranks.library, device_ranks.either
CALLS = {
    "all_gather": test_device.all_gather_into_tensor,
    "lists": test_device.all_gather_list,
    "broadcast": test_device.broadcast,
    "in flight": test_device.many_in_flight,
    "coalesced": test_device.coalesced,
    "reduce": test_device_reduce.every_reduction,
    "messages": test_device_messages.all_types,
    "batch": test_device_messages.batch,
}
# In every run; the others pass the same kinds of records to the engine.
OFTEN = [
    ("all_gather", "slots"),
    ("reduce", "map_all"),
    ("messages", "copy"),
    ("coalesced", "slots"),
]
CASES = [
    pytest.param(call, road, marks=[] if (call, road) in OFTEN else pytest.mark.all_tier)
    for call in CALLS
    for road in ("slots", "map_all", "copy")
]


@pytest.mark.parametrize(("call", "road"), CASES)
def test_device_tensors_of_clients(either, engine_socket, call, road):
    engine = {"engine": f"host:{engine_socket}", "engine_memory": road}
    either(2, CALLS[call], options=engine)
