"""Denies system calls to this process and all its later threads, as sandboxes and old kernels do,
or makes them kill the process (seccomp filters; needs no rights). It cannot be undone: use it in
processes that end with the test."""

from __future__ import annotations

import ctypes
import platform
import struct
from collections.abc import Sequence

# Numbers of linux/audit.h and of the tables of system calls; those from 424 on are equal on both.
_ARCH, _NUMBERS = {
    "x86_64": (
        0xC000003E,
        {
            "socket": 41,
            "sendmsg": 46,
            "clone": 56,
            "setsockopt": 54,
            "getsockopt": 55,
            "kill": 62,
            "fcntl": 72,
            "madvise": 28,
            "ioctl": 16,
            "prctl": 157,
            "sched_setaffinity": 203,
            "accept4": 288,
            "eventfd2": 290,
            "epoll_create1": 291,
            "prlimit64": 302,
            "sendmmsg": 307,
            "process_vm_readv": 310,
            "process_vm_writev": 311,
            "getrandom": 318,
            "memfd_create": 319,
        },
    ),
    "aarch64": (
        0xC00000B7,
        {
            "socket": 198,
            "sendmsg": 211,
            "clone": 220,
            "setsockopt": 208,
            "getsockopt": 209,
            "kill": 129,
            "fcntl": 25,
            "madvise": 233,
            "ioctl": 29,
            "prctl": 167,
            "sched_setaffinity": 122,
            "accept4": 242,
            "eventfd2": 19,
            "epoll_create1": 20,
            "prlimit64": 261,
            "sendmmsg": 269,
            "process_vm_readv": 270,
            "process_vm_writev": 271,
            "getrandom": 278,
            "memfd_create": 279,
        },
    ),
}[platform.machine()]
_NUMBERS |= {"pidfd_open": 434, "clone3": 435, "epoll_pwait2": 441}

_LOAD, _EQUAL, _RETURN = 0x20, 0x15, 0x06  # BPF_LD|W|ABS, BPF_JMP|JEQ|K, BPF_RET|K
_NUMBER_AT, _ARCH_AT, _ARGUMENTS_AT = 0, 4, 16  # in struct seccomp_data
_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000  # the last kills the process
_PR_SET_SECCOMP, _FILTER, _PR_SET_NO_NEW_PRIVS = 22, 2, 38


class _Program(ctypes.Structure):
    """struct sock_fprog"""

    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]


def _instruction(code: int, value: int, if_so: int = 0, if_not: int = 0) -> bytes:
    """Packs an instruction; the last two arguments are the numbers of instructions that a jump skips."""
    return struct.pack("=HBBI", code, if_so, if_not, value)


def _answer(call: str, arguments: dict[int, int], action: int) -> bytes:
    """Returns instructions for one call; any other call continues after their end."""
    tests = [(_NUMBER_AT, _NUMBERS[call])]
    tests += [(_ARGUMENTS_AT + 8 * place, value) for place, value in arguments.items()]
    code = b""
    for i, (at, value) in enumerate(tests):
        rest = 2 * (len(tests) - i - 1) + 1
        code += _instruction(_LOAD, at) + _instruction(_EQUAL, value, if_not=rest)
    return code + _instruction(_RETURN, action)


Calls = Sequence[
    tuple[str, dict[int, int]]
]  # names of calls, and the arguments that must have which values


def deny(calls: Calls, error: int) -> None:
    """Makes these calls fail with `error` from now on."""
    _install(calls, _ERRNO | error)


def kill(calls: Calls) -> None:
    """Makes these calls end the process with SIGSYS."""
    _install(calls, _KILL)


def _install(calls: Calls, action: int) -> None:
    code = _instruction(_LOAD, _ARCH_AT) + _instruction(_EQUAL, _ARCH, if_so=1)
    code += _instruction(_RETURN, _ALLOW)
    for call, arguments in calls:
        code += _answer(call, arguments, action)
    code += _instruction(_RETURN, _ALLOW)
    memory = ctypes.create_string_buffer(code, len(code))
    program = _Program(len(code) // 8, ctypes.addressof(memory))
    libc = ctypes.CDLL(None, use_errno=True)
    for order in (
        (_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
        (_PR_SET_SECCOMP, _FILTER, ctypes.byref(program), 0, 0),
    ):
        if libc.prctl(*order) != 0:
            raise OSError(ctypes.get_errno(), f"prctl {order[0]}")
