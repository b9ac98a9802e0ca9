"""Aggregators that do not serve: the group works without them and reports the reason."""

import socket
import struct
import threading

import programs
import torch.distributed as dist

import torch_mcast

SIZE = 1 << 20


def _refusing(listener: socket.socket) -> None:
    """Refuses every request, like an aggregator without free memory."""
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        with connection:
            length = struct.unpack("<I", connection.recv(4, socket.MSG_WAITALL))[0]
            ask = connection.recv(length, socket.MSG_WAITALL).decode()
            assert ask.startswith("record=ask\n") and "transport=udp\n" in ask
            answer = b"record=refuse\ncode=quota\ntext=quota 512M, 498M in use\n"
            connection.sendall(struct.pack("<I", len(answer)) + answer)


def without_aggregators(ctx, aggregate: str) -> dict:
    listener = socket.create_server(("127.0.0.1", 7117))  # of this host alone: rank 0 connects
    threading.Thread(target=_refusing, args=(listener,), daemon=True).start()
    try:
        programs.join(
            ctx, aggregators="127.0.0.1:7117, 127.0.0.1:7118", aggregate=aggregate, algorithm="auto"
        )
        programs.all_gather(SIZE, 1)
        dist.barrier()
        return torch_mcast.stats()
    finally:
        listener.shutdown(socket.SHUT_RDWR)  # wakes the thread, which would keep the address
        listener.close()


def test_a_group_goes_on_without_aggregators_and_names_the_reason(four):
    rows = four.run(without_aggregators, "careful")
    refused, absent = rows[0]["aggregators"]
    assert refused == {
        "address": "127.0.0.1:7117",
        "state": "refused",
        "reason": "quota: quota 512M, 498M in use",
        "stations": 0,
        "capacity": 0.0,
    }
    assert absent["state"] == "unreachable" and "Connection refused" in absent["reason"]
    for row in rows[1:]:
        assert row["aggregators"] == []
    for row in rows:
        assert row["counters"]["roster_changes"] == 0 and not row["failure"]


def test_aggregators_are_not_contacted_while_aggregation_is_off(four):
    for row in four.run(without_aggregators, "off"):
        assert row["aggregators"] == []
