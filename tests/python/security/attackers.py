"""Functions of ranks that are attacked, and of the attacker's host, with a lab Context as first
argument. The attacker has no part in the job; it receives the multicast of the segment."""

from __future__ import annotations

import contextlib
import io
import random
import resource
import socket
import struct
import time
import zlib
from pathlib import Path

import launch
import torch
import torch.distributed as dist
from addresses import memberships, targets
from conforming import conforms
from contents import compare

import torch_mcast
from torch_mcast._stats_types import Security
from torch_mcast.doctor import watch

PRELOAD = (*launch.MODULES, "attackers", "guarded")
RANKS = 3
ATTACKER = RANKS
SIZE = 1 << 20
ROUNDS = 12
HEADER, GUARDED_HEADER = 32, 40
MAGIC = b"CM"
UDP_SEGMENT = 103
UNHEARD = 9  # a port at which no rank listens
PROBE, DATA = 0x14, 0x11  # version and type
GUARDED_HELLO, HELLO, CHALLENGE = b"MCST\x02\x00", 96, 24


def pattern(size: int, rank: int, salt: int) -> torch.Tensor:
    words = torch.arange(size // 8, dtype=torch.int64)
    words = (words + (rank << 40) + (salt << 48)) * 0x5851F42D4C957F2D
    return words.view(torch.uint8)


def all_gather(salt: int) -> None:
    output = torch.zeros(SIZE * RANKS, dtype=torch.uint8)
    dist.all_gather_into_tensor(output, pattern(SIZE, dist.get_rank(), salt))
    for r in range(RANKS):
        got = output[r * SIZE : (r + 1) * SIZE]
        compare(got, pattern(SIZE, r, salt), f"round {salt}, from {r}")


def resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def since(now: dict, before: dict) -> dict:
    """Returns the part of stats()["security"] that was added since `before`: a lane that serves one
    job after another keeps counting."""

    def less(a: dict, b: dict) -> dict:
        return {cause: count - b.get(cause, 0) for cause, count in a.items()}

    conforms(now, Security)
    known = {row["address"]: row for row in before["sources"]}
    none = {"refused": 0, "causes": {}}
    sources = []
    for row in now["sources"]:
        old = known.get(row["address"], none)
        if row["refused"] > old["refused"]:
            causes = less(row["causes"], old["causes"])
            sources.append({**row, "refused": row["refused"] - old["refused"], "causes": causes})
    return {**now, "causes": less(now["causes"], before["causes"]), "sources": sources}


def recorded_hellos(packets: list[bytes]) -> list[bytes]:
    """Returns the guarded Hellos in the packets of an interface."""
    places = [(packet, packet.find(GUARDED_HELLO)) for packet in packets]
    found = [packet[at : at + HELLO] for packet, at in places if at > 0]
    return [hello for hello in found if len(hello) == HELLO]


def victim(ctx, options: dict, cause: str = "", recorded: bool = False) -> dict:
    """Runs a rank: some rounds before the attack, then those during it; more until some rank has
    counted `cause`, if one is given. `recorded`: the attacker gets the connections' packets, as
    from a mirror port."""
    import guarded

    ctx.world_size = RANKS
    dist.distributed_c10d._world.group_count = 0
    recorder = guarded.Recorder("eth0") if recorded else None
    ctx.init_process_group("mcast", 60.0, pg_options=torch_mcast.Options(**options))
    for salt in range(3):
        all_gather(salt)
    hellos = recorded_hellos(recorder.close()) if recorder else []
    before, refused = resident(), torch_mcast.stats()["security"]
    ctx.notify("made", {**targets(), "hellos": hellos})
    ctx.wait("attacked")
    for salt in range(ROUNDS):
        all_gather(salt + 3)
    salt = ROUNDS
    while (
        cause
        and salt < 20 * ROUNDS
        and "seen" not in _gathered_to_tell(_whether_seen(cause, refused))
    ):
        all_gather(salt + 3)
        salt += 1
    ctx.notify("rounds are over")
    ctx.wait("attack is over")
    all_gather(0)
    stats = torch_mcast.stats()
    stats["security"] = since(stats["security"], refused)
    return {"stats": stats, "grown": resident() - before}


def _sender() -> socket.socket:
    out = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    out.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, 1)
    out.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    return out


def _crc32c_table() -> list[int]:
    table = []
    for i in range(256):
        for _ in range(8):
            i = i >> 1 ^ (0x82F63B78 if i & 1 else 0)
        table.append(i)
    return table


def crc32c(data: bytes, table: list[int] = _crc32c_table()) -> int:  # noqa: B008 - made once
    crc = 0xFFFFFFFF
    for byte in data:
        crc = table[(crc ^ byte) & 255] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def forged(tag: int, member: int, size: int, kind: int = DATA, sequence: int = 5) -> bytes:
    """Returns a datagram that anybody can make: its checksum is right."""
    rest = MAGIC + bytes([kind, 0]) + struct.pack("<QIIIHH", tag, sequence, 7, 0, member, 0)
    rest += bytes(size)
    return struct.pack("<I", crc32c(rest)) + rest


def _send(out: socket.socket, payloads: list[bytes], group: tuple[str, int], count: int) -> int:
    sent = 0
    for i in range(count):
        try:
            sent += out.sendto(payloads[i % len(payloads)], group) > 0
        except OSError:  # this host's queue is full: a flood does not wait
            continue
    return sent


def blind_flood(ctx, found: list[dict]) -> int:
    """Sends as fast as possible: datagrams that do not parse, and some that look like another job's."""
    noise = [zlib.compress(struct.pack("<Q", i))[:7] * 150 for i in range(16)]
    ours = [forged(0x1111 * (i + 1), 1, 1000) for i in range(16)]
    out = _sender()
    return sum(_send(out, noise + ours, group, 6000) for group in found[0]["groups"])


def _lasting_flood(ctx, group: tuple[str, int]) -> int:
    """Sends to one address without pause until the driver stops it. The kernel splits the data into
    datagrams, so that one process suffices; it does not do that for a port without a listener."""
    out = _sender()
    noise, at_once = b"\x5a" * 60, 1
    if group[1] != UNHEARD:
        at_once = 64
        out.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, len(noise))
    sent = 0
    while True:
        sent += _send(out, [noise * at_once], group, 50)
        if ctx.told("enough"):
            return sent


def foreign_job(ctx, found: list[dict]) -> int:
    """Sends as another job at the same address: valid datagrams with its own tag."""
    out = _sender()
    payloads = [forged(0xFEED, m, 1400, kind) for m in range(3) for kind in (DATA, PROBE)]
    return sum(_send(out, payloads, group, 3000) for group in found[0]["groups"])


def _sum16(data: bytes) -> int:
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def _listener(ctx, group: tuple[str, int]) -> socket.socket:
    """Opens a socket that receives the group's multicast."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(group)
    request = socket.inet_aton(group[0]) + socket.inet_aton(ctx.address)
    listener.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, request)
    listener.settimeout(2.0)
    return listener


def _ip_packet(source: str, group: tuple[str, int], payload: bytes) -> bytes:
    udp = struct.pack("!HHHH", 4711, group[1], 8 + len(payload), 0) + payload
    head = struct.pack(
        "!BBHHHBBH4s4s", 0x45, 0, 20 + len(udp), 1, 0, 1, socket.IPPROTO_UDP, 0,
        socket.inet_aton(source), socket.inet_aton(group[0]),
    )  # fmt: skip
    return head[:10] + struct.pack("!H", _sum16(head)) + head[12:] + udp


def header_of(datagram: bytes) -> int:
    """Returns the length of the datagram's header, by its version."""
    return HEADER if datagram[6] >> 4 == 1 else GUARDED_HEADER


def spoofed_member(ctx, found: list[dict]) -> int:
    """Sends datagrams with a member's IP source address: noise, and headers captured in the segment
    (the true tag, sequence and chunk) with other payload."""
    victim_address, groups = found[1]["streams"][0][0], found[0]["groups"]
    # The captured operation may be complete when its header is sent: repeat until the ranks have
    # counted it.
    sent = sum(_spoofed(ctx, victim_address, group) for group in groups)
    while not ctx.told("enough"):
        sent += sum(_spoofed(ctx, victim_address, group) for group in groups)
    return sent


def _spoofed(ctx, victim_address: str, group: tuple[str, int]) -> int:
    sent = 0
    with (
        _listener(ctx, group) as listener,
        socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW) as raw,
    ):
        captured = []
        end = time.monotonic() + 2.0
        while len(captured) < 400 and time.monotonic() < end:
            try:
                datagram = listener.recv(65536)
            except TimeoutError:
                break
            if datagram[4:6] == MAGIC:
                captured.append(datagram)
        for _ in range(2000):
            noise = _ip_packet(victim_address, group, b"\x5a" * 200)
            sent += raw.sendto(noise, (group[0], 0)) > 0
        for datagram in captured:
            head = header_of(datagram)
            worse = datagram[:head] + bytes(b ^ 0x5A for b in datagram[head:])
            sent += raw.sendto(_ip_packet(victim_address, group, worse), (group[0], 0)) > 0
        # Garbage for operations that have not been called yet, in case it is kept for them.
        for datagram in [d for d in captured if d[6] & 15 == DATA & 15][:1]:
            (sequence,) = struct.unpack_from("<I", datagram, 16)
            for chunk in range(300):
                place = (
                    struct.pack("<I", sequence + 20) + datagram[20:24] + struct.pack("<I", chunk)
                )
                later = datagram[:16] + place + datagram[28 : header_of(datagram)] + bytes(1000)
                sent += raw.sendto(_ip_packet(victim_address, group, later), (group[0], 0)) > 0
    return sent


def _with(datagram: bytes, at: int, new: bytes) -> bytes:
    return datagram[:at] + new + datagram[at + len(new) :]


def twisted(d: bytes) -> dict[str, bytes]:
    """Returns the changes that an attacker without the keys can make to a captured datagram of a
    guarded group."""
    (tag, sequence) = struct.unpack_from("<QI", d, 8)
    (member,) = struct.unpack_from("<H", d, 28)
    (number,) = struct.unpack_from("<Q", d, 32)
    return {
        "again": d,
        "other bytes": d[:40] + bytes(b ^ 0x5A for b in d[40:]),
        "one bit of the tag": d[:-1] + bytes([d[-1] ^ 1]),
        "cut": d[:-9],
        "cut to nothing": d[:40],
        "another lane": _with(d, 7, bytes([d[7] ^ 1])),
        "in clear": _with(d, 7, bytes([d[7] ^ 8])),
        "version 1": _with(d, 6, bytes([0x10 | d[6] & 15])),
        "another group": _with(d, 8, struct.pack("<Q", tag + 1)),
        "another operation": _with(d, 16, struct.pack("<I", sequence + 1)),
        "another member": _with(d, 28, struct.pack("<H", (member + 1) % RANKS)),
        "another epoch": _with(d, 32, struct.pack("<Q", number + (1 << 40))),
        "another number": _with(d, 32, struct.pack("<Q", number + 7)),
    }


def guarded_siege(ctx, found: list[dict]) -> int:
    """Sends every received datagram again at once, changed in every way, also to the other lane,
    until the rounds are over; and some much later."""
    out, sent, old = _sender(), 0, []
    groups = found[0]["groups"]
    listeners = [(group, _listener(ctx, group)) for group in groups]
    heard = 0
    while not ctx.told("enough"):
        if heard > 600:
            time.sleep(0.01)  # so that the rounds proceed meanwhile
        for group, listener in listeners:
            listener.settimeout(0.05)
            try:
                datagram = listener.recv(65536)
            except TimeoutError:
                continue
            if datagram[4:6] != MAGIC or datagram[6] >> 4 != 2 or len(datagram) < 56:
                continue  # our own noise
            heard += 1
            old = [*old[-200:], (group, datagram)]
            for made in twisted(datagram).values():
                sent += out.sendto(made, group) > 0
            for other in groups:
                sent += out.sendto(datagram, other) > 0
            listener.settimeout(0.0)  # the rest of the queue is mostly our own
            while True:
                try:
                    listener.recv(65536)
                except OSError:
                    break
    for group, datagram in old:
        sent += out.sendto(datagram, group) > 0
    return sent


def hello_siege(ctx, found: list[dict]) -> int:
    """Opens connections that send nothing, half a Hello, garbage, or a Hello for another rank."""
    held, made = [], 0
    words = [b"", b"MCST", b"GET / HTTP/1.1\r\n\r\n" * 6, b"MCST\x01\x00\x00\x00" + bytes(88)]
    for target in [at for row in found for at in row["streams"]]:
        for i in range(150):
            one = socket.socket()
            one.settimeout(1.0)
            try:
                one.connect(tuple(target))
                one.sendall(words[i % len(words)])
                made += 1
            except OSError:
                continue
            held.append(one)
    return made


def _challenge(one: socket.socket) -> bytes:
    try:
        return one.recv(CHALLENGE, socket.MSG_WAITALL)
    except OSError:
        return b""


def _guarded(targets_: list[tuple[str, int]]) -> list[tuple[str, int]]:
    """Returns the targets that speak first: not the store, nor the lanes of earlier jobs that were
    not guarded."""
    found = []
    for target in targets_:
        # A listener of an earlier job may be closing just now.
        with contextlib.suppress(OSError), socket.create_connection(target, 5.0) as one:
            if _challenge(one)[:4] == b"MCSC":
                found.append(target)
    return found


def _slowly(targets_: list[tuple[str, int]], words: bytes) -> int:
    """Sends a byte per second to each, until all have closed their connection."""
    open_ = [socket.create_connection(target, 5.0) for target in targets_]
    sent = 0
    for byte in words:
        for one in list(open_):
            try:
                sent += one.send(bytes([byte]))
            except OSError:
                open_.remove(one)
        if not open_:
            return sent
        time.sleep(1.0)
    raise AssertionError(f"{len(open_)} connections have taken {len(words)} bytes, one a second")


def guarded_hellos(ctx, found: list[dict]) -> int:
    """Sends Hellos of the guarded version without the secret: made up, recorded from the ranks' own
    connections, and one that is sent byte by byte. Each connection gets a Challenge and nothing
    else."""
    hellos = [hello for row in found for hello in row["hellos"]]
    assert hellos, "the mirror port has shown none"
    rng = random.Random(20)
    made = [GUARDED_HELLO + rng.randbytes(HELLO - len(GUARDED_HELLO)) for _ in range(8)]
    addresses = _guarded([tuple(at) for row in found for at in row["streams"]])
    assert len({host for host, _ in addresses}) == RANKS, addresses
    challenged = 0
    for target in addresses:
        for words in made + hellos[:8]:
            with socket.create_connection(target, 5.0) as one:
                assert len(_challenge(one)) == CHALLENGE
                challenged += 1
                one.sendall(words)
                try:
                    answer = one.recv(1)
                except ConnectionResetError:
                    answer = b""
                assert answer == b"", "was answered"
    return challenged + _slowly(addresses, hellos[0])


ATTACKS = {
    "guarded_hellos": guarded_hellos,
    "blind_flood": blind_flood,
    "foreign_job": foreign_job,
    "spoofed_member": spoofed_member,
    "hello_siege": hello_siege,
    "guarded_siege": guarded_siege,
}


def attacker(ctx, name: str) -> int:
    found = ctx.wait("targets")
    ctx.notify("ready")
    # The rounds begin at the same time; a capture needs their traffic.
    sent = ATTACKS[name](ctx, found)
    ctx.notify("spent", sent)
    ctx.wait("attack is over")
    return sent


def _gathered_to_tell(mine: str) -> list[str]:
    """Gathers a short text of each rank, in fixed places."""
    place = torch.zeros(64, dtype=torch.uint8)
    place[: len(mine)] = torch.tensor(list(mine.encode()), dtype=torch.uint8)
    output = torch.zeros(64 * RANKS, dtype=torch.uint8)
    dist.all_gather_into_tensor(output, place)
    return [bytes(row.tolist()).rstrip(b"\0").decode() for row in output.split(64)]


def _whether_seen(cause: str, before: dict) -> str:
    """Only counts since `before` matter: the lane has also counted attackers of earlier jobs."""
    seen = since(torch_mcast.stats()["security"], before)
    return "seen" if seen["causes"][cause] > 0 else "not yet"


def _rounds_until(word: str, salt: int) -> int:
    """Runs exact all-gathers, two per second, until all ranks report `word`. Returns their number."""
    rounds = 0
    while set(_gathered_to_tell(_place_of_data())) != {word}:
        all_gather(salt + rounds)
        rounds += 1
        time.sleep(0.5)  # a flood has to be much more than the group's own traffic
    return rounds


def _place_of_data() -> str:
    """Returns "multicast"; "ring", or "ring, left" once the rank has left the flooded address."""
    stats = torch_mcast.stats()
    left = stats["path"] == "ring" and stats["counters"]["floods_left"] > 0
    return "ring, left" if left else stats["path"]


def flooded(ctx, options: dict) -> dict | int:
    """Runs a rank that goes to the ring during the flood and returns afterwards; or the flooder."""
    if ctx.rank == ATTACKER:
        return _lasting_flood(ctx, ctx.wait("group"))
    ctx.world_size = RANKS
    dist.distributed_c10d._world.group_count = 0
    ctx.init_process_group("mcast", 60.0, pg_options=torch_mcast.Options(**options))
    all_gather(0)
    before = torch_mcast.stats()["security"]
    ctx.notify("made", targets()["groups"][0])
    rounds = _rounds_until("ring, left", 1)
    groups, there = targets()["groups"], torch_mcast.stats()
    member_of = memberships()
    there["security"] = since(there["security"], before)
    ctx.notify("left")
    rounds += _rounds_until("multicast", rounds)
    return {
        "rounds": rounds, "groups": groups, "memberships": member_of, "there": there,
        "stats": torch_mcast.stats(),
    }  # fmt: skip


def play(ctx, name: str, options: dict, cause: str = ""):
    if ctx.rank == ATTACKER:
        return attacker(ctx, name)
    return victim(ctx, options, cause, recorded=name == "guarded_hellos")


def watched(ctx, allowed: str) -> tuple[int, str] | None:
    """Runs `torch-mcast doctor watch` on the first rank's host while the attacker's joins a group."""
    if ctx.rank == 0:
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            for _ in range(30):
                code = watch.main(["eth0", "--allow", allowed, "--seconds", "1"])
                if code:
                    break
        ctx.notify("seen")
        return code, said.getvalue()
    if ctx.rank == ATTACKER:
        while not ctx.told("enough"):
            with _listener(ctx, ("239.7.7.7", 27777)):
                time.sleep(0.1)
    return None
