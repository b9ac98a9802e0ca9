#!/bin/sh
# Cross-builds the core and its C++ tests for 64-bit ARM, and runs them in qemu's user mode.
#
#   tools/aarch64.sh packages   cross compiler and qemu: as root installs them, else lists the missing ones
#   tools/aarch64.sh libraries  the linked libraries, for arm64, unpacked in build/aarch64/root
#   tools/aarch64.sh build      programs of the tests, in build/aarch64
#   tools/aarch64.sh test       runs them; MCAST_TEST_SEEDS=n: per cent of the usual seeds, here 5
#
# Without arguments it runs all four. The libraries are not installed in the system, because the arm64 packages
# of ISA-L would replace the native ones. docs/testing.md says what this shows about memory ordering.
set -eu
cd "$(dirname "$0")/.."

TREE=$PWD/build/aarch64
ROOT=$TREE/root
JOBS=${JOBS:-$(nproc)}
LIBRARIES="libc6 libgcc-s1 libstdc++6 libisal-dev libisal2 libhwy-dev libhwy1 libgtest-dev libgmock-dev
libibverbs-dev librdmacm-dev libssl-dev libssl3"
# The slowest are last.
PROGRAMS="base dpa wire crypto protocol offload transport verbs shm daemon aggregation runtime host_engine collective"

# Tests that are left out, with the reason. Three programs are left out: layers, which reads sources; security and sim, which take hours here and run the code of the others.
left_out() {
    case $1 in
    # qemu 7.2 lacks the prctl() for seccomp and the one for huge pages, hides the latter in
    # /proc/self/smaps, cannot start an arm64 program by execve(), and returns no pages to the system.
    base) echo "Random.Without*:HugePages.AreUsedForWhatIsTouchedLater:\
HugePages.ContentsStayWhenPagesAreReplaced:Skips.FailInContinuousIntegrationOnly" ;;
    shm) echo "ArenaPool.GivesPagesBack:HostLaneTest.MemoryThatEndsInATurnEndsTheProcess" ;;
    # qemu 7.2 has no process_vm_readv(), so ranks of one host only read through slots, and no execve().
    # The last test of the first line expects traffic on two interfaces at once, which needs threads as fast
    # as a real machine's.
    host_engine) echo "HostEngine.NothingCrossesASocket:HostEngine.TensorsThatAreMapped*:ClientGroup.TheSuite*:\
Guardian*" ;;
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
    (cd "$TREE/apt/packages" && private_apt download $LIBRARIES)
    for package in "$TREE"/apt/packages/*.deb; do
        dpkg -x "$package" "$ROOT"
    done
    touch "$stamp"
}

build() {
    cmake -S . -B "$TREE/cpp" -G Ninja -DCMAKE_TOOLCHAIN_FILE=cmake/aarch64.cmake \
        -DMCAST_AARCH64_ROOT="$ROOT" -DMCAST_WERROR=ON -DMCAST_BUILD_TESTS=ON
    targets=""
    for program in $PROGRAMS; do targets="$targets mcast_test_$program"; done
    # shellcheck disable=SC2086
    cmake --build "$TREE/cpp" -j "$JOBS" --target $targets
    aarch64-linux-gnu-g++ -std=c++20 -shared -fPIC -O1 -Wall -Wextra -Werror \
        -o "$TREE/qemu_gaps.so" tests/aarch64/qemu_gaps.cpp -ldl
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

[ $# -gt 0 ] || set -- packages libraries build test
for step in "$@"; do
    case $step in
    packages | libraries | build) "$step" ;;
    test) test_all ;;
    *)
        echo "usage: tools/aarch64.sh [packages] [libraries] [build] [test]" >&2
        exit 2
        ;;
    esac
done
