from datetime import timedelta
from typing import Any, Protocol, TypeVar

from torch._C._distributed_c10d import Backend, ErrorType
from torch.distributed import ProcessGroup, Store, Work

from torch_mcast._stats_types import Stats

__version__: str
torch_version: str

_Milliseconds = int | float | str | timedelta | None
_Count = int | str | None

_Read = TypeVar("_Read", covariant=True)
_Written = TypeVar("_Written", contravariant=True)

class _Setting(Protocol[_Read, _Written]):
    def __get__(self, options: Options, owner: type[Options]) -> _Read: ...
    def __set__(self, options: Options, value: _Written) -> None: ...

class Options(Backend.Options):
    """Settings of one process group.

    Each setting is a keyword and an attribute. None leaves it to the environment.
    """

    # tools/stub.py makes the two lists of settings.

    def __init__(
        self,
        *,
        timeout: timedelta = ...,
        fallback: str = "auto",
        nccl: Any = None,
        # Settings as keywords:
        transport: str | None = None,
        ib_hca: str | None = None,
        shared_memory: str | None = None,
        algorithm: str | None = None,
        interface: str | None = None,
        faults: str | None = None,
        max_mtu: _Count = None,
        chunk: _Count = None,
        eager: _Count = None,
        window: _Count = None,
        chains: _Count = None,
        subgroups: _Count = None,
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
        rack: str | None = None,
        aggregate: str | None = None,
        aggregator_patience: _Milliseconds = None,
        partial: _Milliseconds = None,
        link_rate: _Count = None,
        engine: str | None = None,
        engine_user: str | None = None,
        engine_memory: str | None = None,
        trace: _Count = None,
        segment: _Count = None,
        device_wait: str | None = None,
        device_pinned: _Count = None,
        device_failure: str | None = None,
        wait: str | None = None,
        pin: _Count = None,
        huge_pages: _Count = None,
        liveness_limit: _Milliseconds = None,
        probe_timeout: _Milliseconds = None,
        rate_test: _Count = None,
        cutoff: _Milliseconds = None,
        linger: _Milliseconds = None,
        security: str | None = None,
        secret_file: str | None = None,
        job: str | None = None,
        security_mixed: _Count = None,
        trust_store: _Count = None,
        security_suite: str | None = None,
        source_auth: _Count = None,
        security_library: str | None = None,
        allow: str | None = None,
        monitor: str | None = None,
        metrics_file: str | None = None,
        debug: str | None = None,
        # End of settings.
    ) -> None: ...
    timeout: timedelta
    fallback: str
    nccl: Any  # ProcessGroupNCCL.Options or None
    # Settings as attributes:
    transport: _Setting[str, str | None]
    ib_hca: _Setting[str, str | None]
    shared_memory: _Setting[str, str | None]
    algorithm: _Setting[str, str | None]
    interface: _Setting[str, str | None]
    faults: _Setting[str, str | None]
    max_mtu: _Setting[int, _Count]
    chunk: _Setting[int, _Count]
    eager: _Setting[int, _Count]
    window: _Setting[int, _Count]
    chains: _Setting[int, _Count]
    subgroups: _Setting[int, _Count]
    arity: _Setting[int, _Count]
    staging: _Setting[int, _Count]
    retransmit: _Setting[int, _Count]
    rcvbuf: _Setting[int, _Count]
    sndbuf: _Setting[int, _Count]
    reorder: _Setting[int, _Count]
    ttl: _Setting[int, _Count]
    port_range: _Setting[str, str | None]
    incast: _Setting[int, _Count]
    fold: _Setting[str, str | None]
    port_queue: _Setting[int, _Count]
    lane_policy: _Setting[str, str | None]
    aggregators: _Setting[str, str | None]
    rack: _Setting[str, str | None]
    aggregate: _Setting[str, str | None]
    aggregator_patience: _Setting[float, _Milliseconds]
    partial: _Setting[float, _Milliseconds]
    link_rate: _Setting[int, _Count]
    engine: _Setting[str, str | None]
    engine_user: _Setting[str, str | None]
    engine_memory: _Setting[str, str | None]
    trace: _Setting[int, _Count]
    segment: _Setting[int, _Count]
    device_wait: _Setting[str, str | None]
    device_pinned: _Setting[int, _Count]
    device_failure: _Setting[str, str | None]
    wait: _Setting[str, str | None]
    pin: _Setting[int, _Count]
    huge_pages: _Setting[int, _Count]
    liveness_limit: _Setting[float, _Milliseconds]
    probe_timeout: _Setting[float, _Milliseconds]
    rate_test: _Setting[int, _Count]
    cutoff: _Setting[float, _Milliseconds]
    linger: _Setting[float, _Milliseconds]
    security: _Setting[str, str | None]
    secret_file: _Setting[str, str | None]
    job: _Setting[str, str | None]
    security_mixed: _Setting[int, _Count]
    trust_store: _Setting[int, _Count]
    security_suite: _Setting[str, str | None]
    source_auth: _Setting[int, _Count]
    security_library: _Setting[str, str | None]
    allow: _Setting[str, str | None]
    monitor: _Setting[str, str | None]
    metrics_file: _Setting[str, str | None]
    debug: _Setting[str, str | None]
    # End of settings.
    @property
    def settings(self) -> dict[str, str]:
        """Settings that were given explicitly, as text."""

    def resolved(self) -> dict[str, str]:
        """Returns every setting as a group made now would have it, as text."""

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
    def supports_tensor_alloc(self, device: Any) -> bool: ...
    def _stats(self) -> Stats: ...
    def _config(self) -> dict[str, str]: ...

class ArenaAllocator:
    """Returned by `mem_allocator` of a group's backend."""

class EngineStore(Store):
    def __init__(
        self, engine: str, host: str, port: int, name: str, timeout: timedelta, user: str = ""
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
def contributors(work: Work) -> int: ...
def replace_cpu_allocator() -> bool: ...
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
