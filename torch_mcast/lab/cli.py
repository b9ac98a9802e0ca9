"""`torch-mcast lab`: run, up, exec, set, counters, status, down, rootless."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shlex
import subprocess
import sys

from torch_mcast.lab import launch, network, rootless, state, system
from torch_mcast.lab.network import Lab
from torch_mcast.lab.spec import MULTICAST_MODES, Fault, LabSpec
from torch_mcast.lab.units import format_rate, parse_rate, parse_size

_FAULT = (
    "PROBABILITY[,host=h2+h3][,direction=in|out][,protocol=udp|tcp|all][,unit=datagram|superpacket]"
)


def add_spec_arguments(parser: argparse.ArgumentParser, hosts: int | None = 4) -> None:
    """Adds the options that describe a lab. The benchmark also uses them."""
    add = parser.add_argument_group("the lab").add_argument
    add("--hosts", type=int, default=hosts, metavar="N", help=f"worker hosts [{hosts or 'no lab'}]")
    add("--ranks-per-host", type=int, default=1, metavar="N", help="ranks of each worker host [1]")
    add("--aggregators", type=int, default=0, metavar="N",
        help="additional hosts with an aggregator each [0]")  # fmt: skip
    add("--engine", action="store_true",
        help="run an engine on each worker host, which handles the network of its ranks")  # fmt: skip
    add("--rate", default=None, help="link speed per direction: 1gbit, 100mbit [no limit]")
    add("--host-rate", action="append", default=[], metavar="HOST=RATE",
        help="link speed of one host; may be repeated")  # fmt: skip
    add("--mtu", type=int, default=1500, metavar="BYTES", help="largest IP packet [1500]")
    add("--burst", default="256k", metavar="BYTES",
        help="burst that passes the shaper at full speed [256k]")  # fmt: skip
    add(
        "--queue", default="4M", metavar="BYTES", help="queue of a switch port before it drops [4M]"
    )
    add("--racks", default=None, metavar="N,N,..",
        help="hosts per rack, each rack with its own switch [no racks]")  # fmt: skip
    add("--aggregator-racks", default=None, metavar="N,N,..",
        help="tree: rack of each aggregator, 0 for the spine; --racks then counts only workers")  # fmt: skip
    add(
        "--uplink-rate", default=None, metavar="RATE", help="speed of the racks' uplinks [no limit]"
    )
    add("--tx-queues", type=int, default=1, metavar="N", help="transmit queues per NIC [1]")
    add("--multicast", choices=MULTICAST_MODES, default="",
        help="how the switch treats multicast [flood; with aggregators snooping]")  # fmt: skip
    add("--multicast-rate", default=None, metavar="RATE",
        help="limit on the multicast of each host, as in gateways of clouds [no limit]")  # fmt: skip
    add("--ipv6", action="store_true", help="hosts have addresses of IPv6 only")
    add("--loss", action="append", default=[], metavar="SPEC", help="lose packets: " + _FAULT)
    add("--bit-errors", action="append", default=[], metavar="SPEC",
        help="damage packets; SPEC as for --loss")  # fmt: skip


def _numbers(text: str | None) -> tuple[int, ...]:
    return tuple(map(int, text.split(","))) if text else ()


def spec_from(args: argparse.Namespace) -> LabSpec:
    """Returns the LabSpec of add_spec_arguments' options. Raises ValueError for wrong options."""
    return LabSpec(
        hosts=args.hosts,
        ranks_per_host=args.ranks_per_host,
        aggregators=args.aggregators,
        engine_options=() if args.engine else None,
        rate=parse_rate(args.rate),
        mtu=args.mtu,
        burst=parse_size(args.burst),
        queue=parse_size(args.queue),
        host_rates=dict(pair.partition("=")[::2] for pair in args.host_rate),
        racks=_numbers(args.racks),
        aggregator_racks=_numbers(args.aggregator_racks),
        uplink_rate=parse_rate(args.uplink_rate),
        tx_queues=args.tx_queues,
        multicast=args.multicast,
        multicast_rate=parse_rate(args.multicast_rate),
        ipv6=args.ipv6,
        faults=(
            *(Fault.parse("loss", text) for text in args.loss),
            *(Fault.parse("bits", text) for text in args.bit_errors),
        ),
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="torch-mcast lab",
        description="Runs a switched cluster of network namespaces on this machine.",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    _add_run(
        commands.add_parser("run", help="create a lab, run a command on every rank, remove the lab")
    )
    up = commands.add_parser("up", help="create a lab that stays until `down`")
    add_spec_arguments(up)
    up.add_argument("--name", default=None, help="name of the lab [generated]")
    inside = commands.add_parser("exec", help="run a command in one host")
    inside.add_argument("--lab", default=None, metavar="NAME", help="lab to use [the only one]")
    inside.add_argument("host", metavar="HOST", help="host of the lab, such as h1")
    _add_command(inside)
    _add_set(commands.add_parser("set", help="change a lab while it runs"))
    status = commands.add_parser("status", help="list the labs of this machine")
    counters = commands.add_parser("counters", help="print bytes and packets of all links")
    counters.add_argument("--lab", default=None, metavar="NAME", help="lab to use [the only one]")
    for sub in (status, counters):
        sub.add_argument("--json", action="store_true", help="print a JSON document")
    down = commands.add_parser("down", help="remove a lab")
    down.add_argument(
        "lab", nargs="?", default=None, metavar="NAME", help="lab to remove [the only one]"
    )
    down.add_argument(
        "--all", action="store_true", help="remove every lab, even those of running programs"
    )
    _add_command(
        commands.add_parser("rootless", help="run a command with the rights to create labs")
    )
    return parser


def _add_command(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "argv", nargs="+", metavar="COMMAND", help="command and its arguments, after --"
    )


def _add_run(run: argparse.ArgumentParser) -> None:
    add_spec_arguments(run)
    run.add_argument(
        "--master-port", type=int, default=29500, metavar="PORT", help="port of the store [29500]"
    )
    run.add_argument(
        "--grace",
        type=float,
        default=10.0,
        metavar="SECONDS",
        help="time for the other ranks to end after the first failure, or after Ctrl-C [10]",
    )
    run.add_argument(
        "--aggregator-command", metavar="COMMAND", help="run this on the aggregator hosts instead"
    )
    run.add_argument("--counters", action="store_true", help="print the links' counters at the end")
    run.add_argument(
        "--color",
        choices=("auto", "always", "never"),
        default="auto",
        help="colour the output [auto]",
    )
    _add_command(run)


def _add_set(change: argparse.ArgumentParser) -> None:
    change.add_argument("--lab", default=None, metavar="NAME", help="lab to change [the only one]")
    change.add_argument(
        "--rate",
        nargs=2,
        action="append",
        default=[],
        metavar=("HOST", "RATE"),
        help="set the link speed of a host",
    )
    change.add_argument(
        "--cut", action="append", default=[], metavar="HOST", help="take down the link of a host"
    )
    change.add_argument(
        "--cut-silently",
        action="append",
        default=[],
        metavar="HOST",
        help="drop all frames of a host while its link stays up",
    )
    change.add_argument(
        "--heal",
        action="append",
        default=[],
        metavar="HOST",
        help="reconnect a host that was cut off",
    )
    change.add_argument(
        "--multicast", choices=MULTICAST_MODES, help="how the switch treats multicast"
    )
    change.add_argument(
        "--loss", action="append", default=None, metavar="SPEC", help="lose packets: " + _FAULT
    )
    change.add_argument(
        "--bit-errors",
        action="append",
        default=None,
        metavar="SPEC",
        help="damage packets; SPEC as for --loss",
    )
    change.add_argument("--no-faults", action="store_true", help="remove all losses and bit errors")


def _the_lab(name: str | None) -> str:
    if name is None:
        known = state.known()
        if len(known) != 1:
            raise system.LabError(f"choose a lab: --lab with one of {known or 'none'}")
        name = known[0]
    return name


def _attach(name: str | None) -> Lab:
    return Lab.attach(_the_lab(name))


def _run(args: argparse.Namespace, argv: list[str]) -> int:
    spec = spec_from(args)
    if args.aggregator_command:
        spec = dataclasses.replace(spec, aggregator_options=None)
    rootless.enter_if_needed(system.python_argv("cli", *argv))
    colour = args.color == "always" or (args.color == "auto" and sys.stdout.isatty())
    with Lab(spec) as lab:
        aggregators = shlex.split(args.aggregator_command) if args.aggregator_command else None
        code = launch.run(lab, args.argv, aggregators, args.master_port, args.grace, colour)
        if args.counters:
            _print_counters(lab, as_json=False)
    return code


def _up(args: argparse.Namespace) -> int:
    lab = Lab(spec_from(args), args.name, persistent=True).up()
    print(lab.id)
    for host in lab.hosts:
        print(f"  {host.name:4} {host.address:12} {host.role:10} {host.namespace}")
    return 0


def _exec(args: argparse.Namespace) -> int:
    lab = _attach(args.lab)
    os.environ.update(lab.env(args.host))
    command = lab.inside(args.host, args.argv)
    os.execvp(command[0], command)


def _set(args: argparse.Namespace) -> int:
    with state.lock():  # from reading the lab's state to writing it
        return _set_locked(args, _attach(args.lab))


def _set_locked(args: argparse.Namespace, lab: Lab) -> int:
    for host, rate in args.rate:
        lab.set_rate(host, rate)
    for host in args.cut + args.cut_silently:
        lab.cut(host, silent=host in args.cut_silently)
    for host in args.heal:
        lab.heal(host)
    if args.multicast:
        lab.set_multicast(args.multicast)
    if args.no_faults or args.loss is not None or args.bit_errors is not None:
        lab.set_faults(
            *(Fault.parse("loss", text) for text in args.loss or []),
            *(Fault.parse("bits", text) for text in args.bit_errors or []),
        )
    return 0


def _status(args: argparse.Namespace) -> int:
    state.collect_garbage()
    labs = network.existing()
    if args.json:
        print(json.dumps(labs, indent=1))
        return 0
    for found in labs:
        spec = LabSpec.from_json(found["spec"])
        owner = f"pid {found['owner'][0]}" if found["owner"] else "stays until `down`"
        print(
            f"{found['id']}: {spec.hosts} hosts x {spec.ranks_per_host} ranks, "
            f"{format_rate(spec.rate)}, MTU {spec.mtu}, multicast {spec.multicast}, {owner}"
            + (
                f", cut off: {', '.join(found['cut'] + found['silent'])}"
                if found["cut"] or found["silent"]
                else ""
            )
        )
        for fault in spec.faults:
            print(
                f"  {fault.kind} {fault.probability:g} {fault.direction} "
                f"{'+'.join(fault.hosts) or 'all hosts'}, {fault.protocol}, per {fault.unit}"
            )
    if not labs:
        print("no labs")
    return 0


def _print_counters(lab: Lab, as_json: bool) -> None:
    now = lab.counters()
    hits = lab.fault_counters()
    if as_json:
        print(
            json.dumps(
                {**dataclasses.asdict(now), "fabric_bytes": now.fabric_bytes, "faults": hits},
                indent=1,
            )
        )
        return
    print(
        f"{'host':6}{'sent (wire B)':>18}{'received (wire B)':>20}{'frames out':>12}"
        f"{'frames in':>12}{'queue drops':>13}  per TX queue"
    )
    for host in lab.hosts:
        nic, port = now.nics[host.name], now.ports[host.name]
        print(
            f"{host.name:6}{nic.wire_bytes:18,}{port.wire_bytes:20,}{nic.wire_packets:12,}"
            f"{port.wire_packets:12,}{nic.queue_drops + port.queue_drops:13,}  {nic.queues}"
        )
    print(f"fabric: {now.fabric_bytes:,} B")
    for hit in hits:
        print(f"{hit['kind']} {hit['direction']} {hit['host']}: {hit['packets']:,} frames")


def _counters(args: argparse.Namespace) -> int:
    _print_counters(_attach(args.lab), args.json)
    return 0


def _down(args: argparse.Namespace) -> int:
    with state.lock():
        return _down_locked(args)


def _down_locked(args: argparse.Namespace) -> int:
    gone = state.collect_garbage()
    if args.all:
        for name in state.known():
            state.destroy(name)
            gone.append(name)
    elif args.lab in gone:
        pass
    else:
        name = _the_lab(args.lab)
        state.load(name)  # raises an error that lists the existing labs
        state.destroy(name)
        gone.append(name)
    print("removed:", ", ".join(gone) or "nothing")
    return 0


def main(argv: list[str] | None = None) -> int:
    """Runs `torch-mcast lab ARGV`. Returns the exit code."""
    argv = sys.argv[1:] if argv is None else argv
    args = _parser().parse_args(argv)
    try:
        if args.command == "run":
            return _run(args, argv)
        if args.command == "rootless":
            rootless.exec_inside(args.argv)
        return {
            "up": _up,
            "exec": _exec,
            "set": _set,
            "status": _status,
            "counters": _counters,
            "down": _down,
        }[args.command](args)
    except (system.LabError, ValueError, OSError, subprocess.TimeoutExpired) as error:
        print(f"torch-mcast lab: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("torch-mcast lab: interrupted", file=sys.stderr)
        return 130
