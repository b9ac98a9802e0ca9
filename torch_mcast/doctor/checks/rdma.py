"""RDMA: whether the verbs transport works here, as the library itself reports."""

from __future__ import annotations

from torch_mcast.doctor.context import Context
from torch_mcast.doctor.findings import Finding, fail, ok, warn

_PAGE = "see docs/troubleshooting.md, RDMA"


def measure() -> str:
    """Returns "", or why verbs does not work on this host."""
    from torch_mcast._load import extension

    return extension().verbs_problem()


def judge(transport: str, problem: str) -> Finding:
    """`transport`: the setting."""
    data = {"transport": transport, "problem": problem}
    if not problem:
        use = (
            "not used: transport=udp"
            if transport == "udp"
            else "used between hosts that all have it"
        )
        return ok("rdma", f"verbs works here; {use}", **data)
    if transport == "verbs":
        return fail("rdma", f"transport=verbs, but {problem}", _PAGE, **data)
    if "no RDMA device" in problem or "cannot be loaded" in problem or "built without" in problem:
        return ok("rdma", f"{problem}; groups use sockets", **data)
    return warn("rdma", f"{problem}; groups use sockets", _PAGE, **data)


def run(context: Context) -> list[Finding]:
    if context.extension_error:
        return []  # the check of versions reports it
    return [judge(context.values.get("transport", "auto"), measure())]
