from datetime import timedelta
from typing import Any

from torch._C._distributed_c10d import Backend, ErrorType
from torch.distributed import ProcessGroup, Store

__version__: str
torch_version: str

_Milliseconds = int | float | str | timedelta | None
_Count = int | str | None

class Options(Backend.Options):
    """Settings of one process group; None means "not given here"."""

    def __init__(
        self,
        *,
        timeout: timedelta = ...,
        fallback: str = "auto",
        nccl: Any = None,
        transport: str | None = None,
        ib_hca: str | None = None,
        algorithm: str | None = None,
        interface: str | None = None,
        faults: str | None = None,
        max_mtu: _Count = None,
        chunk: _Count = None,
        eager: _Count = None,
        window: _Count = None,
        chains: _Count = None,
        arity: _Count = None,
        staging: _Count = None,
        retransmit: _Count = None,
        rcvbuf: _Count = None,
        sndbuf: _Count = None,
        reorder: _Count = None,
        ttl: _Count = None,
        port_range: str | None = None,
        incast: _Count = None,
        fold: str | None = None,
        port_queue: _Count = None,
        lane_policy: str | None = None,
        aggregators: str | None = None,
        aggregate: str | None = None,
        aggregator_patience: _Milliseconds = None,
        partial: _Milliseconds = None,
        link_rate: _Count = None,
        trace: _Count = None,
        segment: _Count = None,
        device_wait: str | None = None,
        device_pinned: _Count = None,
        device_failure: str | None = None,
        pin: _Count | bool = None,
        liveness_limit: _Milliseconds = None,
        probe_timeout: _Milliseconds = None,
        rate_test: _Count = None,
        cutoff: _Milliseconds = None,
        linger: _Milliseconds = None,
        security: str | None = None,
        secret_file: str | None = None,
        trust_store: _Count | bool = None,
        security_suite: str | None = None,
        allow: str | None = None,
        monitor: str | None = None,
        metrics_file: str | None = None,
        debug: str | None = None,
        **settings: Any,
    ) -> None: ...
    timeout: timedelta
    fallback: str
    nccl: Any  # ProcessGroupNCCL.Options or None
    transport: str
    ib_hca: str
    algorithm: str
    interface: str
    faults: str
    max_mtu: int
    chunk: int
    eager: int
    window: int
    chains: int
    arity: int
    staging: int
    retransmit: int
    rcvbuf: int
    sndbuf: int
    reorder: int
    ttl: int
    segment: int
    device_wait: str
    device_pinned: int
    device_failure: str
    pin: int
    liveness_limit: float
    probe_timeout: float
    rate_test: int
    cutoff: float
    linger: float
    debug: str
    @property
    def settings(self) -> dict[str, str]: ...
    def resolved(self) -> dict[str, str]: ...
    def __copy__(self) -> Options: ...
    def __deepcopy__(self, memo: dict[int, Any]) -> Options: ...

class ProcessGroupMcast(Backend):
    def __init__(self, store: Store, rank: int, size: int, options: Options) -> None: ...
    @property
    def options(self) -> Options: ...
    def get_error(self) -> ErrorType: ...
    def _fallback_store(self) -> Store: ...
    def _mode_and_path(self) -> tuple[str, str]: ...
    def perform_nocolor_split(self, device: Any) -> None: ...
    def _stats(self) -> dict[str, Any]: ...
    def _config(self) -> dict[str, str]: ...

class EngineStore(Store):
    def __init__(
        self, engine: str, host: str, port: int, name: str, timeout: timedelta
    ) -> None: ...

def verbs_problem() -> str: ...
def choose_interfaces(
    interfaces: list[Any], pattern: str, lane: int = 0
) -> tuple[list[str], str]: ...
def settings() -> list[dict[str, Any]]: ...
def read_error(text: str) -> dict[str, Any]: ...
def counters() -> dict[str, str]: ...
def causes() -> dict[str, str]: ...
def seal_rate(mode: str, suite: str, chunk: int, library: str = "auto") -> float: ...
def groups() -> list[dict[str, Any]]: ...
def trace() -> list[dict[str, Any]]: ...
def set_gate(
    device: str, wait: int, signal: int, capture_mode: int = 0, is_captured: int = 0
) -> None: ...
def device_stats() -> dict[str, int]: ...
def clear_failure(device: str | None = None) -> None: ...
def named_group(store: Store, rank: int, size: int) -> ProcessGroup: ...
def _use_test_clock(path: str) -> None: ...
def lanes() -> dict[str, str]: ...
def flight_entries(prefix: str) -> list[dict[str, Any]]: ...
def shutdown(give_up: bool = False) -> None: ...
