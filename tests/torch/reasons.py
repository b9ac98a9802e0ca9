"""Remarks of docs/torch-tests.md on tests: why one passes under Gloo's name only."""

_NAME = "compares the backend's name with a list in which mcast is not"
_MONITORED = "torch asks for monitored_barrier under Gloo's name only"

REASONS: dict[str, str] = {
    **dict.fromkeys(
        [
            "test_accumulate_gradients_no_sync",
            "test_accumulate_gradients_no_sync_allreduce_hook",
            "test_accumulate_gradients_no_sync_allreduce_with_then_hook",
            "test_accumulate_gradients_no_sync_grad_is_view",
        ],
        _NAME,
    ),
    **dict.fromkeys(
        ["test_monitored_barrier_gloo", "test_monitored_barrier_gloo_subgroup"], _MONITORED
    ),
}
