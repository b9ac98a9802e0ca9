"""Hosts with addresses of IPv6 only, and hosts with both versions: which one a group takes, and what it says
where hosts have none in common."""

from __future__ import annotations

import contextlib
from datetime import timedelta

import programs
import pytest
import torch
import torch.distributed as dist
from aggregated import rounds_once_served
from named_errors import check_error

import torch_mcast
from torch_mcast.lab import Loss, system
from torch_mcast.lab.topology import NIC
from torch_mcast.secret import new

MULTICAST = {"algorithm": "multicast"}


@pytest.fixture
def six(hosts):
    return hosts(3, ipv6=True)


def uses(stats: dict, family: str) -> bool:
    """Whether the group's lanes have addresses of this version, as the transport's line tells."""
    return ("fd99::" in stats["transport"]) == (family == "IPv6")


def reduce_and_gather(ctx, options=None):
    """Every operation, sums that all ranks can compute, and sends between two ranks."""
    stats = programs.every_op(ctx, [1, 4096, 1 << 20], (), options)
    for size in (1, 1000, 300_000):
        ones = torch.arange(size, dtype=torch.int64) * (ctx.rank + 1)
        dist.all_reduce(ones)
        total = ctx.world_size * (ctx.world_size + 1) // 2
        assert torch.equal(ones, torch.arange(size, dtype=torch.int64) * total)
    if ctx.rank == 0:
        dist.send(torch.full((5,), 7.0), 1)
    elif ctx.rank == 1:
        received = torch.zeros(5)
        dist.recv(received, 0)
        assert received.tolist() == [7.0] * 5
    dist.barrier()
    return stats


def test_every_operation_by_multicast(six):
    for stats in six.run(reduce_and_gather, MULTICAST):
        assert stats["path"] == "multicast" and not stats["failure"], stats["reason"]
        assert uses(stats, "IPv6"), stats["transport"]


def test_two_ranks_per_host_share_the_interface(hosts):
    for stats in hosts(2, 2, ipv6=True).run(reduce_and_gather, MULTICAST):
        assert stats["path"] == "multicast" and not stats["failure"], stats["reason"]


def test_a_switch_that_snoops_on_mld_forwards_to_members(hosts):
    pool = hosts(3, ipv6=True, multicast="snooping")
    for stats in pool.run(programs.every_op, [1, 1 << 20], (), MULTICAST):
        assert stats["path"] == "multicast" and not stats["failure"], stats["reason"]


def test_losses_are_repaired(six):
    six.lab.set_faults(Loss("5%", hosts=["h2"]))
    try:
        stats = six.run(programs.rounds, 2 << 20, 4, MULTICAST)
    finally:
        six.lab.set_faults()
    assert all(row["path"] == "multicast" and not row["failure"] for row in stats)
    assert sum(row["counters"]["repair_chunks_received"] for row in stats) > 0


def test_the_ring_is_taken_where_multicast_does_not_arrive(six):
    drop = "table ip6 blocked { chain in { type filter hook input priority 0; ip6 daddr ff15::/16 counter drop; }; }\n"
    with contextlib.ExitStack() as undo:
        for host in six.lab.workers:
            system.nft(host.namespace, drop)
            undo.callback(system.nft, host.namespace, "delete table ip6 blocked\n")
        for stats in six.run(reduce_and_gather, {"probe_timeout": 300}):
            assert stats["path"] == "ring", stats["reason"]
            assert "does not hear" in stats["reason"], stats["reason"]


@pytest.mark.parametrize("security", ["auth", "sealed"])
def test_guarded_groups(six, security, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text(new())
    secret.chmod(0o600)
    env = {"MCAST_SECRET_FILE": str(secret), "MCAST_JOB": "ipv6"}
    call = six.start(reduce_and_gather, {**MULTICAST, "security": security}, env=env)
    for stats in call.results(60):
        assert stats["path"] == "multicast" and not stats["failure"], stats["reason"]
        assert stats["security"]["mode"] == security


def late(ctx):
    """Another group, of two ranks, some time after the first one."""
    programs.join(ctx)
    programs.all_gather(4096, 1)
    group = dist.new_group([0, 2], backend="mcast", pg_options=torch_mcast.Options(**MULTICAST))
    if ctx.rank != 1:
        tensor = torch.full((100_000,), float(ctx.rank + 1))
        dist.all_reduce(tensor, group=group)
        assert bool((tensor == 4.0).all())
    dist.barrier()
    return torch_mcast.stats(group)["path"] if ctx.rank != 1 else "multicast"


def test_groups_that_are_made_later(six):
    assert six.run(late) == ["multicast"] * 3


def by_network(ctx, pattern, limit_s=20):
    try:
        return reduce_and_gather(ctx, {**MULTICAST, "interface": pattern})
    except dist.DistBackendError as error:
        return str(error)


def test_a_network_or_an_address_names_the_interface(six):
    for pattern in ("fd99::/64", "=fd99::/64"):
        for stats in six.run(by_network, pattern):
            assert not isinstance(stats, str), stats
            assert uses(stats, "IPv6"), stats["transport"]
    for text in six.run(by_network, "fd98::/64"):
        fields = check_error(text, "no_interface", pattern="fd98::/64")
        assert fields["why"].startswith("matches no "), text
        assert "eth0 fd99::" in fields["interfaces"], text


def test_allowed_networks_pass_the_kernel_s_filter(six):
    for stats in six.run(reduce_and_gather, {**MULTICAST, "allow": "10.0.0.0/8,fd99::/64"}):
        assert stats["path"] == "multicast" and not stats["failure"], stats["reason"]


def shut_out(ctx) -> str:
    programs.join(ctx)
    options = torch_mcast.Options(allow="fd98::/64,fd99::8/125", liveness_limit=1000)
    with pytest.raises(dist.DistBackendError) as raised:
        dist.new_group(timeout=timedelta(seconds=8), pg_options=options)
    programs.all_gather(100, 1)
    return str(raised.value)


def test_networks_that_are_not_allowed_are_shut_out(six):
    """Of fd99::8/125 no host is: each accepts only its own address."""
    texts = six.run(shut_out)
    assert any("[fd99::" in text for text in texts), texts


@contextlib.contextmanager
def second_address(host, address):
    """The host's NIC has this address besides."""
    flags = " nodad" if ":" in address else ""
    system.ip_batch([f"addr add {address} dev {NIC}{flags}"], host.namespace)
    try:
        yield
    finally:
        system.ip_batch([f"addr del {address} dev {NIC}"], host.namespace)


def test_hosts_with_both_versions_follow_the_store(six):
    """Its address is one of IPv6, so ranks that are told a name of an interface take IPv6 as well."""
    with contextlib.ExitStack() as held:
        for host in six.lab.workers:
            held.enter_context(second_address(host, f"10.97.0.{host.number + 1}/24"))
        for pattern in ("", NIC, "^docker"):
            for stats in six.run(by_network, pattern):
                assert not isinstance(stats, str), stats
                assert uses(stats, "IPv6"), stats["transport"]
        for stats in six.run(by_network, "10.97.0.0/24"):
            assert not isinstance(stats, str), stats
            assert "10.97.0." in stats["transport"]


def test_a_host_with_both_versions_joins_those_with_one(six):
    with second_address(six.lab.workers[0], "10.97.0.1/24"):
        for stats in six.run(by_network, NIC):
            assert not isinstance(stats, str), stats
            assert uses(stats, "IPv6"), stats["transport"]


LIMIT = timedelta(seconds=20)


def refused(ctx, *patterns) -> str:
    """What a group says whose ranks have these settings, beside the one whose store it uses."""
    programs.join(ctx)
    interface = patterns[min(ctx.rank, len(patterns) - 1)]
    with pytest.raises(dist.DistBackendError) as raised:
        dist.new_group(timeout=LIMIT, pg_options=torch_mcast.Options(interface=interface))
    programs.all_gather(100, 1)
    return str(raised.value)


def test_hosts_without_a_common_version_are_named(six):
    with second_address(six.lab.workers[0], "10.97.0.1/24"):
        for text in six.run(refused, "10.97.0.0/24", "fd99::/64"):
            assert "rank 0 on host h1 has 10.97.0.1 (interface eth0), which is an IPv4" in text, (
                text
            )
            assert "rank 1 on host h2 has fd99::2 (interface eth0), which is an IPv6" in text
            assert "all ranks of a group must use the same version" in text


def link_local_only(ctx) -> str:
    with pytest.raises(dist.DistBackendError) as raised:
        programs.join(ctx, interface=NIC, shared_memory="off")
    return str(raised.value)


def test_link_local_addresses_are_refused_by_name(hosts):
    pool = hosts(1, 2, ipv6=True)
    host = pool.lab.workers[0]
    system.ip_batch([f"addr del {host.address}/64 dev {NIC}"], host.namespace)
    try:
        call = pool.start(link_local_only, env={"MASTER_ADDR": "::1"})
        for text in call.results(60):
            assert "eth0 (only a link-local IPv6 address; it needs a global or unique" in text, text
    finally:
        system.ip_batch([f"addr add {host.address}/64 dev {NIC} nodad"], host.namespace)


def sums(salt: int) -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    tensor = torch.arange(1 << 20, dtype=torch.int32) * (rank + 1) + salt
    dist.all_reduce(tensor)
    factors = world * (world + 1) // 2
    assert torch.equal(tensor, torch.arange(1 << 20, dtype=torch.int32) * factors + salt * world)


def test_aggregators_fold(served):
    call = served(4, 2, ipv6=True).start(rounds_once_served, sums, 3)
    call.wait("served")
    call.signal("go")
    rows = call.results()
    assert [row["state"] for row in rows[0]["aggregators"]] == ["admitted"] * 2
    assert rows[0]["aggregators"][0]["address"] == "[fd99::5]:7117"
    assert sum(row["counters"]["agg_results"] for row in rows) > 0


def test_engines_run_the_network(hosts):
    for stats in hosts(2, ipv6=True, engine_options=()).run(programs.every_op, [1, 1 << 20]):
        assert stats["transport_reason"].startswith("engine of this host")
        assert uses(stats, "IPv6"), stats["transport"]
