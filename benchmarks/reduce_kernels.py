"""Compares the core's reduction kernels with torch's add_, one thread each, in GB/s of source bytes.

    cmake -S . -B build/bench -G Ninja -DMCAST_BUILD_BENCH=ON -DMCAST_BUILD_TESTS=OFF
    cmake --build build/bench
    python benchmarks/reduce_kernels.py build/bench/mcast_bench_core

For each type, the kernel (Google Benchmark) and torch run in turns, `--rounds` times. The table has
the medians and the median of the ratios. For 16-bit floats the kernel accumulates in float32 and
moves 10 bytes per element; torch rounds at every addition and moves 6. For bool the reduction is OR.
complex64 is measured as float32 with twice the elements. Both are measured in CPU time, since the
machine may be shared.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import time

import torch

SIZES = (60 << 10, 16 << 20)
# Name of the kernel's benchmark, and torch's type.
TYPES = {
    "float64": torch.float64,
    "float32": torch.float32,
    "complex64": torch.complex64,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "int64": torch.int64,
    "int32": torch.int32,
    "int16": torch.int16,
    "int8": torch.int8,
    "uint8": torch.uint8,
    "bool": torch.bool,
}


def kernel(program: str, name: str, seconds: float) -> dict[int, float]:
    """Returns bytes per second by size, of the benchmark `name`."""
    done = subprocess.run(
        [
            program,
            f"--benchmark_filter=^{name}/[0-9]+$",
            f"--benchmark_min_time={seconds}",
            "--benchmark_format=json",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    rows = json.loads(done.stdout)["benchmarks"]
    return {int(row["name"].rsplit("/", 1)[1]): row["bytes_per_second"] for row in rows}


def torch_add(dtype: torch.dtype, size: int, seconds: float) -> float:
    source = torch.ones(size // dtype.itemsize, dtype=dtype)
    total = torch.zeros_like(source)
    total.add_(source)
    runs = 1
    while True:
        start = time.thread_time()
        for _ in range(runs):
            total.add_(source)
        passed = time.thread_time() - start
        if passed >= seconds:
            return runs * size / passed
        runs = max(runs + 1, int(runs * 1.2 * seconds / max(passed, 1e-6)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program", help="mcast_bench_core")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.05, help="of each measurement")
    args = parser.parse_args()
    torch.set_num_threads(1)
    memcpy: dict[int, list[float]] = {size: [] for size in SIZES}
    print("| type | size | kernel GB/s | torch add_ GB/s | kernel / torch |")
    print("|---|---|---|---|---|")
    for name, dtype in TYPES.items():
        ours: dict[int, list[float]] = {size: [] for size in SIZES}
        theirs: dict[int, list[float]] = {size: [] for size in SIZES}
        row = "float32" if name == "complex64" else name
        for _ in range(args.rounds):
            found = kernel(args.program, f"fold/{row}/sum", args.seconds)
            copied = kernel(args.program, "memcpy", args.seconds)
            for size in SIZES:
                ours[size].append(found[size])
                memcpy[size].append(copied[size])
                theirs[size].append(torch_add(dtype, size, args.seconds))
        for size in SIZES:
            ratio = statistics.median(a / b for a, b in zip(ours[size], theirs[size], strict=True))
            print(
                f"| {name} | {'60 KiB' if size == SIZES[0] else '16 MiB'} "
                f"| {statistics.median(ours[size]) / 1e9:.1f} "
                f"| {statistics.median(theirs[size]) / 1e9:.1f} | {ratio:.2f} |",
                flush=True,
            )
    for size in SIZES:
        what = "60 KiB" if size == SIZES[0] else "16 MiB"
        print(f"| memcpy | {what} | {statistics.median(memcpy[size]) / 1e9:.1f} | | |")


if __name__ == "__main__":
    main()
