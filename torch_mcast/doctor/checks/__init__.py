"""One module per subject; each has run(context) -> list of findings. The order is the report's."""

from __future__ import annotations

import traceback
from collections.abc import Callable

from torch_mcast.doctor.checks import (
    buffers,
    devices,
    engine,
    firewall,
    gpus,
    host,
    interfaces,
    limits,
    memory,
    mtu,
    multicast,
    offload,
    rdma,
    routing,
    security,
    settings,
    tcp,
    versions,
)
from torch_mcast.doctor.context import Context
from torch_mcast.doctor.findings import Finding, fail

Check = Callable[[Context], list[Finding]]

ALL: tuple[Check, ...] = (
    versions.run,
    settings.run,
    interfaces.run,
    multicast.run,
    routing.run,  # after the checks that find its causes
    firewall.run,
    mtu.run,
    buffers.run,
    offload.run,
    tcp.run,
    rdma.run,
    limits.run,
    memory.run,
    gpus.run,
    devices.run,
    security.run,
    engine.run,
    host.run,
)


def run_all(context: Context, checks: tuple[Check, ...] = ALL) -> list[Finding]:
    """Returns the findings of all checks. A check that cannot be carried out is a failure in its
    own row."""
    findings: list[Finding] = []
    for check in checks:
        try:
            findings += check(context)
        except Exception as error:  # noqa: BLE001 - the other checks are still worth running
            name = check.__module__.rpartition(".")[2]
            where = traceback.extract_tb(error.__traceback__)[-1]
            findings.append(
                fail(
                    name,
                    f"the check could not be carried out: {type(error).__name__}: {error} "
                    f"({where.name}, line {where.lineno})",
                )
            )
    return findings
