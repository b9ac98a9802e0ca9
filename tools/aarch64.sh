#!/bin/sh
# Cross-builds the core and its C++ tests for 64-bit ARM, and runs them in qemu's user mode.
#
#   tools/aarch64.sh packages   cross compiler and qemu: as root installs them, else lists the missing ones
#   tools/aarch64.sh libraries  the linked libraries, for arm64, unpacked in build/aarch64/root
#   tools/aarch64.sh build      programs of the tests, in build/aarch64
#   tools/aarch64.sh test       runs them; MCAST_TEST_SEEDS=n: per cent of the usual seeds, here 5
#   tools/aarch64.sh wheel      a wheel for the torch of .venv and two ranks with it, in Debian's Python for arm64
#
# Without arguments it runs the first four. The libraries are not installed in the system, because the arm64 packages
# of ISA-L would replace the native ones. docs/testing.md says what this shows about memory ordering.
set -eu
cd "$(dirname "$0")/.."

TREE=$PWD/build/aarch64
ROOT=$TREE/root
JOBS=${JOBS:-$(nproc)}
LIBRARIES="libc6 libgcc-s1 libstdc++6 libisal-dev libisal2 libhwy-dev libhwy1 libgtest-dev libgmock-dev
libibverbs-dev librdmacm-dev libssl-dev libssl3"
INTERPRETER="python3.11-minimal libpython3.11-minimal libpython3.11-stdlib zlib1g libexpat1 libffi8 libbz2-1.0 liblzma5"
# The slowest are last.
PROGRAMS="base dpa wire crypto protocol offload transport verbs shm daemon aggregation runtime host_engine collective"

# Tests that are left out, with the reason. Three programs are left out: layers, which reads sources; security and sim, which take hours here and run the code of the others.
left_out() {
    case $1 in
    # qemu 7.2 lacks the prctl() for seccomp and the one for huge pages, hides the latter in
    # /proc/self/smaps, cannot start an arm64 program by execve(), and returns no pages to the system.
    base) echo "Random.Without*:HugePages.AreAskedForWhatIsTouchedLater:\
HugePages.ContentsStayWhenPagesAreReplaced:Skips.FailInContinuousIntegrationOnly" ;;
    # qemu 7.2 refuses IP_MULTICAST_IF.
    transport) echo "UdpDatagramTest.CountsDatagramsForAnotherPort:UdpDatagramTest.ComesFromWhereItsEndpointListens:\
UdpSiege.DatagramsFromOutsideOfAllowNeverArrive" ;;
    shm) echo "ArenaPool.GivesPagesBack:HostLaneTest.MemoryThatEndsInATurnEndsTheProcess" ;;
    # qemu 7.2 has no execve() of arm64 programs and no process_vm_readv(): ranks of one host read through slots
    # only, and an engine copies no client's memory. It ignores advice to add pages and to give them back.
    # ClientGroup.TheSuite expects traffic on two interfaces at once, which needs threads as fast as a real
    # machine's.
    host_engine) echo "HostEngine.NothingCrossesASocket:HostEngine.TensorsThatAreMapped*:ClientGroup.TheSuite*:\
Guardian*:ClientCopy*:ClientArenasTest.SpansHavePagesBeforeTheEngineSeesThem:\
ClientArenasTest.PagesThatAreNotNeededLatelyGoBack:ClientMemory.IsCopiedBothWays:\
ClientMemory.TheDescriptorMustBeTheSendersMemory:MoverTest.AllGatherIsCopiedOutOfPlaceAndInPlace:\
MoverTest.StagedInputIsReadAsFarAsAllowed" ;;
    runtime) echo "Rails.DeliverExactBytesInAnyOrder" ;;
    # These do not depend on the machine and take minutes: hundreds of members, or links filled for long.
    collective) echo "Scale*:InStep*:LongPath*" ;;
    esac
}

packages() {
    tools/setup.sh aarch64
}

# Runs apt with separate lists, cache and status.
private_apt() {
    apt-get -q -o Dir="$TREE/apt" -o Dir::State::status="$TREE/apt/status" \
        -o Dir::Bin::methods=/usr/lib/apt/methods -o Dir::Bin::dpkg=/usr/bin/dpkg \
        -o Dir::Etc::trustedparts=/etc/apt/trusted.gpg.d -o APT::Architecture=arm64 \
        -o APT::Architectures=arm64 -o APT::Sandbox::User=root "$@"
}

libraries() {
    stamp=$ROOT/.stamp
    if [ -e "$stamp" ] && [ "$stamp" -nt tools/aarch64.sh ]; then
        return 0
    fi
    rm -rf "$TREE/apt" "$ROOT"
    mkdir -p "$ROOT" "$TREE/apt/etc/apt/preferences.d" "$TREE/apt/var/lib/apt/lists/partial" \
        "$TREE/apt/var/cache/apt/archives/partial" "$TREE/apt/packages"
    : >"$TREE/apt/status"
    mirror=$("${PYTHON:-python3}" tools/sources.py mirror debian)
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror bookworm main" \
        >"$TREE/apt/etc/apt/sources.list"
    private_apt update
    # shellcheck disable=SC2086
    (cd "$TREE/apt/packages" && private_apt download $LIBRARIES $INTERPRETER)
    for package in "$TREE"/apt/packages/*.deb; do
        dpkg -x "$package" "$ROOT"
    done
    touch "$stamp"
}

gaps() {
    aarch64-linux-gnu-g++ -std=c++20 -shared -fPIC -O1 -Wall -Wextra -Werror \
        -o "$TREE/qemu_gaps.so" tests/aarch64/qemu_gaps.cpp -ldl
}

build() {
    cmake -S . -B "$TREE/cpp" -G Ninja -DCMAKE_TOOLCHAIN_FILE=cmake/aarch64.cmake \
        -DMCAST_AARCH64_ROOT="$ROOT" -DMCAST_WERROR=ON -DMCAST_BUILD_TESTS=ON
    targets=""
    for program in $PROGRAMS; do targets="$targets mcast_test_$program"; done
    # shellcheck disable=SC2086
    cmake --build "$TREE/cpp" -j "$JOBS" --target $targets
    gaps
}

# Runs a program with the C library of $ROOT only: with parts of the cross compiler's, or of arm64 packages of the
# system, it hangs at the start of the first thread.
emulated() {
    qemu-aarch64-static -L "$ROOT" \
        -E LD_LIBRARY_PATH="$ROOT/lib/aarch64-linux-gnu:$ROOT/usr/lib/aarch64-linux-gnu" \
        -E LD_PRELOAD="$TREE/qemu_gaps.so" "$@"
}

# Runs the slowest program in several parts at once.
run_program() {
    shards=1
    [ "$1" != collective ] || shards=$JOBS
    parts="" shard=0 status=0
    while [ "$shard" -lt "$shards" ]; do
        GTEST_TOTAL_SHARDS=$shards GTEST_SHARD_INDEX=$shard emulated "$TREE/cpp/mcast_test_$1" \
            --gtest_brief=1 --gtest_filter="-$(left_out "$1")" &
        parts="$parts $!" shard=$((shard + 1))
    done
    for part in $parts; do
        wait "$part" || status=1
    done
    return $status
}

test_all() {
    export MCAST_TEST_SEEDS="${MCAST_TEST_SEEDS:-5}"
    failed=""
    for program in $PROGRAMS; do
        echo "== $program on aarch64"
        run_program "$program" || failed="$failed $program"
    done
    [ -z "$failed" ] || { echo "failed on aarch64:$failed" >&2; exit 1; }
}

# Torch reads about the processor from files that qemu 7.2 takes from this machine. It takes them from $ROOT if they
# are there.
processor() {
    mkdir -p "$ROOT/proc" "$ROOT/sys/devices/system/cpu/cpu0/regs/identification"
    echo 0x00000000411fd070 >"$ROOT/sys/devices/system/cpu/cpu0/regs/identification/midr_el1"
    for core in $(seq 0 $(($(nproc) - 1))); do
        printf 'processor\t: %d\nFeatures\t: fp asimd aes pmull sha1 sha2 crc32 atomics\n' "$core"
        printf 'CPU implementer\t: 0x41\nCPU architecture: 8\nCPU variant\t: 0x1\n'
        printf 'CPU part\t: 0xd07\nCPU revision\t: 0\n\n'
    done >"$ROOT/proc/cpuinfo"
}

# Torch and all that it requires, for arm64. Without an index of CPU builds these are several gigabytes of CUDA.
torch_for_arm() {
    torch=$("$PYTHON" -c 'import torch; print(torch.__version__.split("+")[0])')
    [ "$(cat "$TREE/site/.torch" 2>/dev/null)" != "$torch" ] || return 0
    rm -rf "$TREE/site"
    platforms=--platform=manylinux2014_aarch64
    for minor in $(seq 17 28); do platforms="$platforms --platform=manylinux_2_${minor}_aarch64"; done
    # shellcheck disable=SC2086
    "$PYTHON" -m pip install -q --target "$TREE/site" $platforms --only-binary=:all: --python-version 3.11 \
        ${MCAST_TORCH_INDEX:+--extra-index-url "$MCAST_TORCH_INDEX"} "torch==$torch" packaging rich
    echo "$torch" >"$TREE/site/.torch"
}

# The two ranks use shared memory first, then sockets.
wheel() {
    PYTHON=${VENV:-.venv}/bin/python
    if [ "$("$PYTHON" -c 'import sys; print(*sys.version_info[:2])')" != "3 11" ]; then
        echo "tools/aarch64.sh wheel: Debian 12 has Python 3.11 for arm64; .venv has another version" >&2
        exit 2
    fi
    wheel=$("$PYTHON" tools/wheel.py --machine aarch64 | tail -1)
    gaps
    processor
    torch_for_arm
    rm -rf "$TREE/package"
    "$PYTHON" -m zipfile -e "$wheel" "$TREE/package"
    for shared in auto off; do
        port=$("$PYTHON" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
        MCAST_SHARED_MEMORY=$shared rank 1 "$port" &
        second=$!
        MCAST_SHARED_MEMORY=$shared rank 0 "$port"
        wait $second
    done
}

rank() {
    emulated -E PYTHONPATH="$TREE/package:$TREE/site" -E PYTHONDONTWRITEBYTECODE=1 -E MCAST_SOCKET_IFNAME=lo \
        "$ROOT/usr/bin/python3.11" tests/aarch64/two_ranks.py "$@"
}

[ $# -gt 0 ] || set -- packages libraries build test
for step in "$@"; do
    case $step in
    packages | libraries | build | wheel) "$step" ;;
    test) test_all ;;
    *)
        echo "usage: tools/aarch64.sh [packages] [libraries] [build] [test] [wheel]" >&2
        exit 2
        ;;
    esac
done
