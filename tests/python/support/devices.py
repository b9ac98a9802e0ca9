"""The devices on which the tests of device tensors run, in the process of a rank. take() makes one
of them its device; then device() is its name in torch, and ops() has the functions that tests apply
to it:

    flip(tensor, value)        a kernel: every byte ^= value
    use_stream(number)         makes that stream the current one; returns the previous number. 0: the default
    synchronize()              waits for the current stream
    hold(), release()          commands after hold() on the current stream do not run before release()
    stall(), go_on()           data posted after stall() does not leave the device completely before go_on()
    peek(tensor, n)            its first n bytes as they are now, without waiting for what is enqueued
    capture(True), capture(False)   captures a graph in this thread, in the mode in which calls of any thread may break it;
                               the end returns how many did (on CUDA it raises the error that broke it)
    capture_here(True), capture_here(False)   the same for commands of this thread to the current stream, which is not 0; the
                               end returns their number (0 on CUDA, where they are not counted)
    asked()                    increases when a thread has queried the progress of the device
    block_asking(on), blocked()     makes calls to the device block while streams wait; how many block now
    pooled()                   streams taken from torch's pool

The fake device (fake_device/) also has gates(), copies(), allow() and fault(): it counts enqueued
commands, limits copies and fails on request. A GPU cannot do that, so the tests that need it are
marked `fake_device`.
"""

from __future__ import annotations

import ctypes
import threading
import time
from typing import Any

import fake_device
import torch


class Fake:
    name = "fake"

    def __init__(self, library: str, gate: bool) -> None:
        self._ops = fake_device.load(library, gate)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ops, name)

    def stall(self) -> None:
        self.allow(fake_device.TO_HOST, 1)

    def go_on(self) -> None:
        self.allow(fake_device.TO_HOST, -1)


class Cuda:
    """The first GPU, for all ranks: they may share one. Functions that torch lacks are called in
    the driver, as the extension does (csrc/torch/device/gate.cpp). One per process: it must be the
    first use of CUDA, and the process must not fork.
    """

    name = "cuda"
    STREAMS = 17  # tests use smaller numbers
    ROOM = (
        20 << 20
    )  # bytes; an allocator's segment, more than tests allocate while a stream is held

    def __init__(self) -> None:
        torch.cuda.set_device(0)
        self._streams = {0: torch.cuda.default_stream()}
        self._streams |= {number: torch.cuda.Stream() for number in range(1, self.STREAMS)}
        self._current = 0
        self._aside = torch.cuda.Stream()
        self._driver = ctypes.CDLL("libcuda.so.1")  # torch has already loaded it
        self._word = torch.zeros(1, dtype=torch.int32, pin_memory=True)
        self._word_there = ctypes.c_uint64()
        self._call(
            "cuMemHostGetDevicePointer_v2",
            ctypes.byref(self._word_there),
            ctypes.c_void_p(self._word.data_ptr()),
            ctypes.c_uint(0),
        )
        self._holds = self._releases = 0
        self._captured = torch.zeros(8, dtype=torch.uint8, device="cuda")
        self._since = 0.0  # monotonic time of the last capture() or block_asking()
        self._spare: ctypes.c_uint64 | None = None
        self._freeing: threading.Thread | None = None

    def _call(self, name: str, *args: Any) -> None:
        error = getattr(self._driver, name)(*args)
        assert error == 0, f"{name}: CUDA driver error {error}"

    def prepare(self) -> None:
        """Runs before each test. Actions whose first use may wait for the whole device are done
        now, while no stream is held: kernels are loaded, and both of torch's allocators get memory
        so that they need not call the driver later.
        """
        torch.cuda.set_device(0)
        for number in range(8):
            with torch.cuda.stream(self._streams[number]):
                room = [
                    torch.empty(size, dtype=torch.uint8, device="cuda")
                    for size in (self.ROOM, 1 << 20)
                ]
                self.flip(room[0], 1)
                room[0][::2].copy_(room[0][1::2])
                del room
        for exponent in range(16, 25):  # it keeps powers of two; the extension takes 64 KiB or more
            pair = [
                torch.empty(1 << exponent, dtype=torch.uint8, pin_memory=True) for _ in range(2)
            ]
            del pair
        if self._spare is None:
            self._spare = ctypes.c_uint64()
            self._call("cuMemAlloc_v2", ctypes.byref(self._spare), ctypes.c_size_t(1 << 21))
        torch.cuda.synchronize()

    def flip(self, tensor: torch.Tensor, value: int) -> None:
        # A tensor of one element may have any stride and still be contiguous, which view() refuses.
        tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8).bitwise_xor_(value)

    def use_stream(self, number: int) -> int:
        torch.cuda.set_stream(self._streams[number])
        before, self._current = self._current, number
        return before

    def synchronize(self) -> None:
        torch.cuda.current_stream().synchronize()

    def hold(self) -> None:
        """Makes the stream wait for a word of pinned memory rather than in a spinning kernel, which
        would occupy the GPU for an unknown time while other ranks need it."""
        self._holds += 1
        self._call(
            "cuStreamWaitValue32_v2",
            ctypes.c_void_p(torch.cuda.current_stream().cuda_stream),
            self._word_there,
            ctypes.c_uint32(self._holds),
            ctypes.c_uint(0),  # wait until the word is at least that
        )

    def release(self) -> None:
        self._releases += 1
        self._word.fill_(self._releases)

    stall, go_on = hold, release

    def peek(self, tensor: torch.Tensor, n: int) -> torch.Tensor:
        with torch.cuda.stream(self._aside):
            return tensor.view(-1).view(torch.uint8)[:n].cpu()

    def capture(self, begin: bool) -> int:
        with torch.cuda.stream(self._aside):
            if begin:
                self._graph = torch.cuda.CUDAGraph()
                self._graph.capture_begin(capture_error_mode="global")
                self.flip(self._captured, 1)
                self._since = time.monotonic()
            else:
                self._graph.capture_end()
                self._graph.replay()
        return 0

    def capture_here(self, begin: bool) -> int:
        if begin:
            self._graph = torch.cuda.CUDAGraph()
            self._graph.capture_begin()
        else:
            self._graph.capture_end()  # raises the error that broke it
        return 0

    def asked(self) -> int:
        """Estimates the number, since CUDA does not report it. The extension queries operations in
        flight every half second (completion_poller.cpp), so it has done so when two more seconds
        are over."""
        return int((time.monotonic() - self._since) // 2)

    def block_asking(self, on: bool) -> None:
        """Starts a thread that returns memory to the driver, which waits for all streams of the
        process first."""
        if on:
            context, spare = ctypes.c_void_p(), self._spare
            self._call("cuCtxGetCurrent", ctypes.byref(context))

            def free() -> None:
                self._call("cuCtxSetCurrent", context)
                self._call("cuMemFree_v2", spare)
                self._spare = None

            self._freeing = threading.Thread(target=free, daemon=True)
            self._freeing.start()
            self._since = time.monotonic()
        elif self._freeing is not None:
            self._freeing.join(40)
            assert self._spare is None, "the driver does not come back"
            self._freeing = None

    def blocked(self) -> int:
        """Returns 1 if the call has not returned after 0.2 s, since CUDA does not report that a
        short call is blocked."""
        waits = self._freeing is not None and self._freeing.is_alive()
        return int(waits and time.monotonic() - self._since > 0.2)

    def pooled(self) -> int:
        return 0  # not counted on CUDA


_here: Fake | Cuda | None = None


def take(name: str, library: str, gate: bool) -> None:
    """Makes `name` the device of this process, permanently. `library` and `gate` are for the fake
    device; on CUDA, MCAST_DEVICE_WAIT sets whether there is a gate."""
    global _here
    if name == "fake":
        _here = Fake(library, gate)
    elif _here is None:
        _here = Cuda()
    if isinstance(_here, Cuda):
        _here.prepare()


def ops() -> Any:
    assert _here is not None, "this process has taken no device"
    return _here


def device() -> str:
    return ops().name
