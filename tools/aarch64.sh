#!/bin/sh
# The core and its C++ tests on 64-bit ARM: cross-built, and run in qemu's user mode.
#
#   tools/aarch64.sh packages   cross compiler and qemu: installs them as root, else names the missing
#   tools/aarch64.sh libraries  what is linked, for arm64, unpacked in build/aarch64/root
#   tools/aarch64.sh build      programs of the tests, in build/aarch64
#   tools/aarch64.sh test       runs them; MCAST_TEST_SEEDS=n: per cent of the usual seeds, here 5
#
# Without a word: all four. The libraries do not go into the system: its arm64 packages of ISA-L would
# take the place of its own. What this shows of memory ordering: docs/testing.md.
set -eu
cd "$(dirname "$0")/.."

TREE=$PWD/build/aarch64
ROOT=$TREE/root
JOBS=${JOBS:-$(nproc)}
MIRROR=${MCAST_DEBIAN_MIRROR:-http://deb.debian.org/debian}
LIBRARIES="libc6 libgcc-s1 libstdc++6 libisal-dev libisal2 libhwy-dev libhwy1 libgtest-dev libgmock-dev
libibverbs-dev librdmacm-dev libssl-dev libssl3"
# Slowest last.
PROGRAMS="base dpa wire crypto ipc protocol aggregation offload transport verbs host engine collective"

# What is left out, and why. Of programs: service, whose processes start each other; layers, which reads sources;
# security and simulation, which take hours here, over what the others run.
left_out() {
    case $1 in
    # qemu 7.2 knows neither the prctl() for seccomp nor the one for huge pages, hides what
    # /proc/self/smaps says of them, cannot start a program of arm64 by execve(), and gives no pages
    # back.
    base) echo "Random.Without*:HugePages.AreUsedForWhatIsTouchedLater:\
HugePages.ContentsStayWhenPagesAreReplaced:Skips.FailInContinuousIntegrationOnly" ;;
    host) echo "ArenaPool.GivesPagesBack:HostLaneTest.MemoryThatEndsInATurnEndsTheProcess" ;;
    # qemu 7.2 has no process_vm_readv(), so ranks of one host read by slots only, and no execve().
    # The last of the first line expects two interfaces to be under way at once, which takes threads as
    # fast as a real machine's.
    engine) echo "HostEngine.NothingCrossesASocket:HostEngine.TensorsThatAreMapped*:Rails.DeliverExactBytesInAnyOrder:\
ClientGroup.TheSuite*" ;;
    # Nothing of the machine's, and minutes: hundreds of members, or links filled for long.
    collective) echo "Scale*:InStep*:LongPath*" ;;
    esac
}

packages() {
    tools/setup.sh aarch64
}

# apt with lists, cache and status of its own.
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
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $MIRROR bookworm main" \
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

# With its own C library, of which all parts are of one version: a mixture with that of the cross
# compiler, or of arm64 packages of the system, hangs where the first thread starts.
emulated() {
    qemu-aarch64-static -L "$ROOT" \
        -E LD_LIBRARY_PATH="$ROOT/lib/aarch64-linux-gnu:$ROOT/usr/lib/aarch64-linux-gnu" \
        -E LD_PRELOAD="$TREE/qemu_gaps.so" "$@"
}

# The slowest in parts side by side.
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
