"""Small network programs for the lab's own tests; run as `python traffic.py WHAT ...` in a host.

sink PORT COUNT [GROUP]      binds, prints "ready", counts until COUNT distinct datagrams arrived, or
                             standard input is closed and no more arrive for 0.3 s
send ADDRESS PORT COUNT SIZE numbered datagrams, paced by the socket's buffer
echo PORT                    answers datagrams until killed
ask ADDRESS PORT             exit 0 if the echo answers, 1 if not within a second
"""

import hashlib
import select
import socket
import struct
import sys

QUIET_S = 0.3
SO_RCVBUFFORCE = 33  # asm-generic/socket.h; no constant in the module


def sink(port, count, group=None):
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 64 << 20)
    sock.bind(("", int(port)))
    if group:
        request = struct.pack(
            "4sl4s", socket.inet_aton(group), socket.INADDR_ANY, socket.inet_aton("0.0.0.0")
        )
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, request[:8])
    print("ready", flush=True)
    seen, damaged = set(), 0
    sources, limit = [sock, sys.stdin], None
    while len(seen) < int(count):
        ready = select.select(sources, [], [], limit)[0]
        if not ready:
            break
        if sys.stdin in ready:
            sources, limit = [sock], QUIET_S
        if sock in ready:
            data = sock.recv(65536)
            seen.add(data[:8])
            damaged += data[8:24] != hashlib.md5(data[:8] + data[24:]).digest()
    print(len(seen), damaged, flush=True)


def send(address, port, count, size):
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, 1)
    body = b"x" * (int(size) - 24)
    for i in range(int(count)):
        number = struct.pack("<Q", i)
        sock.sendto(number + hashlib.md5(number + body).digest() + body, (address, int(port)))


def echo(port):
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind(("", int(port)))
    print("ready", flush=True)
    while True:
        data, peer = sock.recvfrom(65536)
        sock.sendto(data, peer)


def ask(address, port):
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.settimeout(1)
    try:
        sock.sendto(b"?", (address, int(port)))
        sock.recv(10)
    except OSError:
        sys.exit(1)


if __name__ == "__main__":
    {"sink": sink, "send": send, "echo": echo, "ask": ask}[sys.argv[1]](*sys.argv[2:])
