"""A second implementation of the keys and messages of docs/security.md, from the page and not from the
C++: writes security_vectors.json beside itself, which tests/cpp/crypto reads.

    python3 tests/data/make_security_vectors.py          # needs the package "cryptography"
    python3 tests/data/make_security_vectors.py --check  # exits with 1 if the file is another

All values are hexadecimal. Nothing is random: inputs are SHA-256 of their names.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import struct
import sys
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

FILE = Path(__file__).with_name("security_vectors.json")
MODES = {"auth": 1, "sealed": 2}
SUITES = {"aes128gcm": 1, "aes256gcm": 2, "chacha20poly1305": 3}


def some(name: str, size: int = 32) -> bytes:
    """Bytes that look random and are always the same."""
    out = b""
    while len(out) < size:
        out += hashlib.sha256(f"{name} {len(out)}".encode()).digest()
    return out[:size]


def mac(key: bytes, data: bytes) -> bytes:
    return hmac.new(key, data, hashlib.sha256).digest()


def extract(salt: bytes, ikm: bytes) -> bytes:
    return mac(salt, ikm)


def derive(key: bytes, label: str, context: bytes = b"", size: int = 32) -> bytes:
    info = b"mcast1 " + label.encode() + b"\0" + context
    return HKDFExpand(SHA256(), size, info).derive(key)


def shared(private: bytes, public: bytes) -> bytes:
    key = X25519PrivateKey.from_private_bytes(private)
    return key.exchange(X25519PublicKey.from_public_bytes(public))


def public_of(private: bytes) -> bytes:
    key = X25519PrivateKey.from_private_bytes(private).public_key()
    return key.public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)


def siphash13(key: bytes, data: bytes) -> int:
    mask = 2**64 - 1

    def left(x: int, n: int) -> int:
        return (x << n | x >> (64 - n)) & mask

    k0, k1 = struct.unpack("<QQ", key)
    v = [k0 ^ 0x736F6D6570736575, k1 ^ 0x646F72616E646F6D]
    v += [k0 ^ 0x6C7967656E657261, k1 ^ 0x7465646279746573]

    def sip() -> None:
        v[0] = (v[0] + v[1]) & mask
        v[1] = left(v[1], 13) ^ v[0]
        v[0] = left(v[0], 32)
        v[2] = (v[2] + v[3]) & mask
        v[3] = left(v[3], 16) ^ v[2]
        v[0] = (v[0] + v[3]) & mask
        v[3] = left(v[3], 21) ^ v[0]
        v[2] = (v[2] + v[1]) & mask
        v[1] = left(v[1], 17) ^ v[2]
        v[2] = left(v[2], 32)

    padded = data + b"\0" * (7 - len(data) % 8) + bytes([len(data) & 255])
    for (word,) in struct.iter_unpack("<Q", padded):
        v[3] ^= word
        sip()
        v[0] ^= word
    v[2] ^= 0xFF
    for _ in range(3):
        sip()
    return v[0] ^ v[1] ^ v[2] ^ v[3]


def aead(suite: str, key: bytes):
    return ChaCha20Poly1305(key) if suite == "chacha20poly1305" else AESGCM(key)


def epoch_key(chain: bytes, suite: str) -> tuple[bytes, bytes]:
    size = 16 if suite == "aes128gcm" else 32
    return derive(chain, "key", size=size), derive(chain, "iv", size=12)


def nonce_of(iv: bytes, number: int) -> bytes:
    return bytes(a ^ b for a, b in zip(iv, b"\0" * 4 + struct.pack(">Q", number), strict=True))


def guard(mode: str, suite: str, key: bytes, nonce: bytes, head: bytes, body: bytes) -> bytes:
    """head, body or its ciphertext, tag."""
    if mode == "sealed":
        return head + aead(suite, key).encrypt(nonce, body, head)
    return head + body + aead(suite, key).encrypt(nonce, b"", head + body)


def text(value: str) -> bytes:
    return struct.pack("<I", len(value)) + value.encode()


def keys(v: dict[str, bytes]) -> None:
    v["secret"] = some("secret")
    v["root"] = extract(b"torch-mcast secret 1", v["secret"])
    for name in ("record", "hello", "mix"):
        v[f"{name}_key"] = derive(v["root"], name)
    v["secret_check"] = derive(v["record_key"], "check", b"a nonce", size=8)
    v["job_key"] = derive(
        derive(v["root"], "jobs"), "job", hashlib.sha256(b"run|node0|29500").digest()
    )
    v["role_key"] = derive(v["root"], "role", bytes([1]) + b"rack 7")
    place = text("job/3") + text("rank/1") + text("default") + struct.pack("<II", 1, 4)
    v["record_mac"] = mac(v["record_key"], place + b"a record")
    records = [b"first", b"", b"a third record"]
    listed = b"".join(struct.pack("<I", len(r)) + r for r in records)
    v["transcript"] = hashlib.sha256(
        b"torch-mcast transcript 1" + struct.pack("<I", 3) + listed
    ).digest()
    v["agreed_key"] = derive(v["record_key"], "agreed", v["transcript"])
    for end in ("a", "b"):
        v[f"private_{end}"] = some(f"private {end}")
        v[f"public_{end}"] = public_of(v[f"private_{end}"])
    v["shared"] = shared(v["private_a"], v["public_b"])
    v["group_random"] = some("group random")
    v["group_secret"] = extract(b"torch-mcast group 1", v["group_random"] + v["mix_key"])
    common = extract(v["transcript"], v["shared"] + v["mix_key"])
    v["wrap_key"] = derive(common, "wrap", struct.pack("<H", 2))
    v["wrapped"] = AESGCM(v["wrap_key"]).encrypt(b"\0" * 12, v["group_secret"], b"")
    v["group_root"] = extract(v["transcript"], v["group_secret"])
    v["pair_key"] = extract(b"torch-mcast pair 1", v["shared"] + v["mix_key"])


def datagrams(v: dict[str, bytes]) -> None:
    lane, member = 1, 5
    v["filter_key"] = derive(v["group_root"], "filter", bytes([lane]), 16)
    v["payload"] = some("payload", 97)
    for mode, mode_number in MODES.items():
        for suite, suite_number in SUITES.items():
            context = bytes([mode_number, suite_number, lane]) + struct.pack("<H", member)
            chain = derive(v["group_root"], "datagram", context)
            v[f"chain {mode} {suite}"] = chain
            for epoch in (0, 1):
                key, iv = epoch_key(chain, suite)
                v[f"epoch {epoch} {mode} {suite}"] = key + iv
                for counter in (0, 1):
                    number = epoch << 40 | counter
                    flags = lane | 2 | 4 | (8 if mode == "sealed" else 0)  # last, in order
                    rest = struct.pack(
                        "<HBBQIIIHHQ",
                        *(0x4D43, 2 << 4 | 1, flags, 0x1122334455667788, 77, 0xDEADBEEF, 12),
                        *(member, 0, number),
                    )
                    filtered = siphash13(v["filter_key"], rest) & 0xFFFFFFFF
                    head = struct.pack("<I", filtered) + rest
                    nonce = nonce_of(iv, number)
                    name = f"datagram {epoch} {counter} {mode} {suite}"
                    v[name] = guard(mode, suite, key, nonce, head, v["payload"])
                chain = derive(chain, "next")


def streams(v: dict[str, bytes]) -> None:
    """b connects to a."""
    for mode, mode_number in MODES.items():
        for suite, suite_number in SUITES.items():
            how = f"{mode} {suite}"
            offered = 1 << suite_number
            challenge = b"MCSC" + struct.pack("<HBB", 2, mode_number, offered)
            challenge += some("acceptor nonce", 16)
            head = some("hello head")
            head = head[:4] + struct.pack("<H", 2) + head[6:30]
            hello = head + bytes([0, suite_number << 4 | mode_number])
            hello += some("connector nonce", 16) + v["public_b"]
            h1 = hashlib.sha256(challenge + hello).digest()
            hello += mac(v["hello_key"], h1)[:16]
            ack = some("ack head", 16)
            ack = ack[:4] + struct.pack("<H", 2) + ack[6:]
            h2 = hashlib.sha256(h1 + hello[80:] + ack).digest()
            connection = derive(v["pair_key"], "stream", h2)
            ack += mac(derive(connection, "ack"), h2)[:16]
            confirm = mac(derive(connection, "confirm"), h2 + ack)[:16]
            v[f"challenge {how}"] = challenge
            v[f"hello {how}"] = hello
            v[f"ack {how}"] = ack
            v[f"confirm {how}"] = confirm
            for direction in ("c2a", "a2c"):
                chain = derive(connection, direction, bytes([mode_number, suite_number]))
                v[f"{direction} {how}"] = chain
            chain = v[f"c2a {how}"]
            key, iv = epoch_key(chain, suite)
            # A frame, one with a number of a stripe, and the goodbye.
            for count, (number, body) in enumerate(
                ((b"", v["payload"]), (b"\7\0\0\0", b"x"), (b"", b""))
            ):
                length = struct.pack("<I", len(number) + len(body) + 16)
                record = guard(mode, suite, key, nonce_of(iv, count), length + number, body)
                v[f"record {count} {how}"] = record


def digests(v: dict[str, bytes]) -> None:
    """Digests of the payload as the block of a root, and of a part that is one leaf."""
    for leaf, size in ((32, 97), (64, 64)):
        block = v["payload"][:size]
        leaves = b"".join(
            hashlib.sha256(b"torch-mcast leaf 1" + block[at : at + leaf]).digest()
            for at in range(0, size, leaf)
        )
        name = struct.pack("<QBIIHQQ", 0x1122334455667788, 1, 77, 0xDEADBEEF, 5, size, leaf)
        digest = hashlib.sha256(b"torch-mcast block 1" + name + leaves).digest()
        v[f"block {size} {leaf}"] = digest


def main() -> int:
    vectors: dict[str, bytes] = {}
    keys(vectors)
    datagrams(vectors)
    streams(vectors)
    digests(vectors)
    written = json.dumps({k: b.hex() for k, b in vectors.items()}, indent=0) + "\n"
    if "--check" in sys.argv:
        return 0 if FILE.read_text() == written else 1
    FILE.write_text(written)
    return 0


if __name__ == "__main__":
    sys.exit(main())
