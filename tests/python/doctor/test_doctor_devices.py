"""The doctor's row about the hardware queues of GPUs."""

import pytest

from torch_mcast.doctor.checks import devices
from torch_mcast.doctor.context import Context
from torch_mcast.doctor.findings import Verdict

OK, WARN = Verdict.OK, Verdict.WARN


@pytest.mark.parametrize(
    ("connections", "device_wait", "verdict", "text"),
    [
        ("1", "auto", OK, "blocks the calling thread"),
        ("1", "stream", WARN, "no kernel of this process runs"),
        ("1", "host", OK, "device_wait=host"),
        ("8", "stream", OK, "CUDA_DEVICE_MAX_CONNECTIONS=8"),
    ],
)
def test_connections(connections, device_wait, verdict, text):
    environment = {"CUDA_DEVICE_MAX_CONNECTIONS": connections}
    (row,) = devices.run(Context(environment, {"device_wait": device_wait}))
    assert (row.check, row.verdict) == ("gpu queues", verdict)
    assert text in row.finding
    assert ("MCAST_DEVICE_WAIT=auto" in row.fix) == (verdict is WARN)


def test_there_is_no_row_without_the_variable():
    assert devices.run(Context({}, {"device_wait": "auto"})) == []
