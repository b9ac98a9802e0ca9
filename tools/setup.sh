#!/bin/sh
# Prepares a fresh clone on Debian or Ubuntu: system packages, virtual environment, Python packages, the
# extension. The Makefile runs it. It does not change existing installations.
#
#   tools/setup.sh run        requirements for building and running: Debian packages, .venv with torch
#   tools/setup.sh test       run, and requirements of tests and linters
#   tools/setup.sh bench      run, and requirements of the benchmark and its peers
#   tools/setup.sh frameworks frameworks in build/frameworks, beside the torch of .venv, and Slurm, for make test-frameworks
#   tools/setup.sh torch      .venv with only torch, for tests of other versions; compiles nothing
#   tools/setup.sh build      pip install -e . into .venv
#   tools/setup.sh extension  the same without the programs of aggregator, engine and simulator, for make demo;
#                             if they have been built before, it builds them again
#   tools/setup.sh ahead      compiles half of the core in a new build folder; run and test do so while pip fetches torch
#   tools/setup.sh wheel      an assembler and what else tools/wheel.py takes
#   tools/setup.sh aarch64    a cross compiler and qemu, for make aarch64
#   tools/setup.sh dpa        a bare-metal RISC-V compiler and qemu, for make dpa-count
#   tools/setup.sh docs       .venv with MkDocs, without torch and without a compiler; the script that draws diagrams
#   tools/setup.sh browser    a browser, for make docs-test
#
# As root it installs missing Debian packages; as another user it lists them and stops. Variables:
#   VENV, PYTHON, TORCH       .venv, python3, torch==2.13.0
#   MCAST_TORCH_INDEX         additional index for torch. The default is https://download.pytorch.org/whl/cpu, since
#                             PyPI's torch for x86-64 brings gigabytes of CUDA; it is not used if pip is configured
#                             to use another index. ".../whl/cu130" gives a CUDA build, "none" no additional index
set -eu
cd "$(dirname "$0")/.."

VENV=${VENV:-.venv}
PYTHON=${PYTHON:-python3}
TORCH=${TORCH:-torch==2.13.0}
CPU_INDEX=https://download.pytorch.org/whl/cpu
PERHAPS=" (for x86-64 perhaps the CUDA build, gigabytes)"
TORCH_INDEX=${MCAST_TORCH_INDEX-default}

# Packages that run requires. The rest comes from pip, or CMake fetches it.
NEEDED="g++ python3-venv python3-dev"
RUN="$NEEDED libhwy-dev libisal-dev libibverbs-dev librdmacm-dev"
TEST="libgtest-dev libgmock-dev libssl-dev ccache procps iproute2 iptables nftables ethtool dropbear-bin openssh-client \
ibverbs-providers rdma-core qemu-system-x86 busybox-static kmod cpio zstd systemd"
if [ "$(uname -m)" = x86_64 ]; then TEST="$TEST libipsec-mb-dev"; fi
BENCH="libbenchmark-dev openmpi-bin libopenmpi-dev iproute2 nftables ethtool"

# Versions of clang for sanitizers and fuzzing; the first one available is used. The formatter comes from pip, since its
# output changes with each version.
CLANGS="14 15 16 17 18 19"

RUN_PIP="numpy rich packaging setuptools>=69 wheel"
TEST_PIP="pytest>=8 pytest-xdist>=3.5 expecttest ruff>=0.8 clang-format==14.0.6 mypy==2.4.1 pyyaml cloudpickle cryptography matplotlib"
BENCH_PIP="cloudpickle matplotlib"
DOCS_PIP="mkdocs>=1.6,<2 mkdocs-material>=9.6,<10 mkdocstrings[python]>=0.29,<2 ruff>=0.8"
# The package asks for a newer Python than the site, so its file alone is taken: mermaid.min.js of Mermaid 11.16.0.
MERMAID="artoo-mermaid==11.16.0"
MERMAID_SHA256=74d7c46dabca328c2294733910a8aa1ed0c37451776e8d5295da38a2b758fb9b
# docs/stacks.md has the same versions. torchtitan imports triton without asking for it.
FRAMEWORKS_PIP="lightning==2.6.6 accelerate==1.15.0 transformers==5.24.0 deepspeed==0.19.8 ray==2.60.0 torchft==0.2.0 \
megatron-core==0.16.1 torchtitan==0.3.0 triton==3.9.0"
FRAMEWORKS="slurmctld slurmd slurm-client"
# From pip: dpkg takes 25 s to unpack Debian's packages, pip 3 s. The Makefile also looks into .venv.
if ! { command -v cmake && command -v ninja; } >/dev/null; then
    RUN_PIP="$RUN_PIP cmake ninja"
fi

absent() { # of these packages
    missing=""
    for package in "$@"; do
        dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q "ok installed" ||
            missing="$missing $package"
    done
    # An interpreter from elsewhere (pyenv) brings its own venv and headers.
    if "$PYTHON" -c "import ensurepip" 2>/dev/null; then
        missing=$(echo "$missing" | sed 's/ python3-venv//')
    fi
    if "$PYTHON" -c "import os.path, sysconfig as s
open(os.path.join(s.get_path('include'), 'Python.h'))" 2>/dev/null; then
        missing=$(echo "$missing" | sed 's/ python3-dev//')
    fi
    # Likewise a compiler. (Not g++-aarch64-linux-gnu.)
    if command -v c++ >/dev/null; then
        missing=$(echo "$missing" | sed -e 's/ g++$//' -e 's/ g++ / /')
    fi
    echo "$missing"
}

packages() { # these
    if ! command -v dpkg-query >/dev/null; then
        echo "no Debian packages here: going on with what there is" >&2
        return 0
    fi
    missing=$(absent "$@")
    [ -z "$missing" ] && return 0
    if [ "$(id -u)" -ne 0 ]; then
        echo "These packages are missing:$missing" >&2
        echo "Install them: sudo apt-get install$missing" >&2
        exit 1
    fi
    export DEBIAN_FRONTEND=noninteractive
    # shellcheck disable=SC2086
    apt-get install -y --no-install-recommends $missing ||
        { apt-get update && apt-get install -y --no-install-recommends $missing; }
}

# Prints the packages of the first clang that is installed, else of the first one in the archive. In most releases the
# runtime of the sanitizers is a separate package.
clang() {
    version=""
    for n in $CLANGS; do
        if [ -z "$version" ] && command -v "clang++-$n" >/dev/null; then version=$n; fi
    done
    for n in $CLANGS; do
        if [ -z "$version" ] && offered "clang-$n"; then version=$n; fi
    done
    version=${version:-${CLANGS%% *}}
    echo "clang-$version"
    if offered "libclang-rt-$version-dev"; then echo "libclang-rt-$version-dev"; fi
}

offered() { # whether the archive has this package
    LC_ALL=C apt-cache policy "$1" 2>/dev/null | grep "Candidate: [^(]" >/dev/null
}

# Without root only the required packages: CMake fetches the others.
run_packages() {
    # shellcheck disable=SC2086
    if [ "$(id -u)" -eq 0 ]; then
        packages $RUN
    else
        packages $NEEDED
    fi
}

# shellcheck disable=SC2086
wheel() { packages $NEEDED nasm libibverbs-dev librdmacm-dev binutils xz-utils python-apt-common; }
aarch64() { packages g++-aarch64-linux-gnu qemu-user-static cmake ninja-build; }
dpa() { packages gcc-riscv64-unknown-elf qemu-system-misc; }

pip_install() { "$VENV/bin/python" -m pip install -q --disable-pip-version-check "$@"; }

# With an index that does not respond, pip would retry for minutes.
answers() { # this index
    "$VENV/bin/python" - "$1" <<'END'
import os, ssl, sys, urllib.request
try:
    trust = ssl.create_default_context(cafile=os.environ.get("PIP_CERT") or None)
    urllib.request.urlopen(sys.argv[1].rstrip("/") + "/torch/", timeout=10, context=trust).close()
except (OSError, ValueError):
    sys.exit(1)
END
}

# Prints pip's options for the additional index; pip prefers 2.13.0+cpu to 2.13.0. Reports the choice in one line on
# stderr.
torch_index() {
    case $TORCH_INDEX in
    default)
        # Respect the index that the user has configured.
        if "$VENV/bin/python" -m pip config list | grep -E '(index-url|find-links|no-index)=' >/dev/null; then
            echo "torch: from pip's own index, which is configured here$PERHAPS" >&2
            return 0
        fi
        TORCH_INDEX=$CPU_INDEX
        torch_index
        ;;
    "" | none) echo "torch: from pip's own index" >&2 ;;
    *)
        if answers "$TORCH_INDEX"; then
            echo "torch: from $TORCH_INDEX (MCAST_TORCH_INDEX=none: from pip's own index)" >&2
            echo "--extra-index-url $TORCH_INDEX"
        else
            echo "torch: from pip's own index, since $TORCH_INDEX does not answer$PERHAPS" >&2
        fi
        ;;
    esac
}

# The core does not need torch, so half of it is compiled, as by setup.py, while pip fetches torch. Only half, so that
# the adapter, which takes longest, can start when torch has arrived. If this fails, setup.py reports the cause.
ahead() {
    tree="build/$("$PYTHON" -c 'import sys; print(sys.implementation.cache_tag)')"
    [ ! -e "$tree/CMakeCache.txt" ] || return 0
    PATH="$(cd "$VENV/bin" && pwd):$PATH"
    mkdir -p "$tree"
    exec >"$tree/ahead.log" 2>&1
    # shellcheck disable=SC2086
    cmake -S . -B "$tree" -G Ninja -DMCAST_BUILD_TESTS=OFF "-DMCAST_WERROR=${MCAST_WERROR:-0}" \
        ${MCAST_JOIN:+"-DMCAST_JOIN=$MCAST_JOIN"} "-DCMAKE_BUILD_TYPE=${CMAKE_BUILD_TYPE:-RelWithDebInfo}" \
        ${CMAKE_ARGS:-}
    objects=$(ninja -C "$tree" -t targets all | sed -n 's/^\(CMakeFiles.mcast_core.dir.*[.]o\): .*/\1/p' | sort)
    # shellcheck disable=SC2086
    ninja -C "$tree" -j "${MAX_JOBS:-$(nproc)}" $(echo "$objects" | head -n "$(($(echo "$objects" | wc -l) / 2))")
}

venv() { # for this purpose, with these packages
    stamp="$VENV/.stamp-$1"
    shift
    if [ "$stamp" -nt pyproject.toml ] 2>/dev/null && [ "$stamp" -nt tools/setup.sh ]; then
        return 0
    fi
    if ! [ -e "$VENV/.stamp-torch" ] || [ "$(cat "$VENV/.stamp-torch")" != "$TORCH" ]; then
        [ -x "$VENV/bin/python" ] || "$PYTHON" -m venv "$VENV"
        case $RUN_PIP in *cmake*) pip_install cmake ninja ;; esac
        ahead=""
        if [ "$step" != torch ]; then
            # A separate process group, so that the traps below end all of its processes.
            setsid tools/setup.sh ahead &
            ahead=$!
        fi
        trap '[ -z "$ahead" ] || kill -TERM "-$ahead" 2>/dev/null' EXIT
        trap 'exit 130' INT
        trap 'exit 143' TERM
        # shellcheck disable=SC2046
        pip_install $(torch_index) "$TORCH"
        echo "$TORCH" >"$VENV/.stamp-torch"
    fi
    pip_install "$@"
    [ -z "${ahead:-}" ] || wait "$ahead" || true
    ahead=""
    touch "$stamp"
}

# Each word of a list is a separate requirement.
# shellcheck disable=SC2086
run() {
    run_packages
    venv run $RUN_PIP
}

# shellcheck disable=SC2086
torch() { venv other $RUN_PIP; }

# shellcheck disable=SC2086
tests() {
    # A minimal system or image may have no package lists; without them no clang is found.
    if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then
        lists=""
        for n in $CLANGS; do
            if offered "libclang-rt-$n-dev" || offered "libclang-common-$n-dev"; then lists=$n; fi
        done
        [ -n "$lists" ] || apt-get update
    fi
    packages $RUN $TEST $(clang)
    venv test $RUN_PIP $TEST_PIP
}

# shellcheck disable=SC2086
bench() {
    packages $RUN $BENCH
    venv bench $RUN_PIP $BENCH_PIP
}

# An environment that sees the packages of .venv: frameworks replace some of these by older ones (fsspec) and bring
# plugins that pytest would load.
# shellcheck disable=SC2086
frameworks() {
    packages $FRAMEWORKS
    venv frameworks $RUN_PIP
    home=build/frameworks
    if [ "$home/.stamp" -nt tools/setup.sh ] 2>/dev/null; then return 0; fi
    rm -rf "$home"
    "$VENV/bin/python" -m venv "$home"
    "$home/bin/python" - "$("$VENV/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" <<'END'
import pathlib, sys, sysconfig
link = pathlib.Path(sysconfig.get_path("purelib")) / "near.pth"
link.write_text(f"import site; site.addsitedir({sys.argv[1]!r})\n")
END
    "$home/bin/python" -m pip install -q --disable-pip-version-check "$TORCH" $FRAMEWORKS_PIP
    touch "$home/.stamp"
}

# The script is kept under build/, so that a later build of the site needs no network.
mermaid() {
    script=build/docs/mermaid.min.js
    mkdir -p build/docs
    echo "$MERMAID_SHA256  $script" >build/docs/SHA256
    if sha256sum --status -c build/docs/SHA256 2>/dev/null; then return 0; fi
    "$VENV/bin/python" -m pip download -q --disable-pip-version-check --no-deps --only-binary=:all: \
        --python-version 3.12 -d build/docs "$MERMAID"
    "$VENV/bin/python" - build/docs/artoo_mermaid-*.whl "$script" <<'END'
import sys, zipfile
with zipfile.ZipFile(sys.argv[1]) as wheel, open(sys.argv[2], "wb") as script:
    script.write(wheel.read("artoo_mermaid/assets/mermaid.min.js"))
END
    sha256sum --quiet -c build/docs/SHA256
}

# shellcheck disable=SC2086
docs() {
    packages python3-venv
    [ -x "$VENV/bin/python" ] || "$PYTHON" -m venv "$VENV"
    if ! [ "$VENV/.stamp-docs" -nt tools/setup.sh ] 2>/dev/null; then
        pip_install $DOCS_PIP
        touch "$VENV/.stamp-docs"
    fi
    mermaid
}

browser() {
    command -v chromium >/dev/null || packages chromium
}

build() { # [this part]
    stamp="$VENV/.stamp-${1:-build}"
    if [ -e "$stamp" ] && [ -z "$(find CMakeLists.txt cmake setup.py pyproject.toml csrc \
        -newer "$stamp" -print -quit)" ] && ls torch_mcast/_C.*.so >/dev/null 2>&1; then
        return 0
    fi
    pip_install --no-build-isolation --no-deps -e .
    touch "$stamp"
}

# Training needs only the extension; the programs are a quarter of the code to compile.
extension() {
    if ls torch_mcast/mcast-* >/dev/null 2>&1; then
        build
    else
        MCAST_PROGRAMS=off build extension
    fi
}

for step in "$@"; do
    case $step in
    test) tests ;;
    run | torch | bench | frameworks | build | extension | ahead | wheel | aarch64 | dpa | docs | browser) "$step" ;;
    *)
        echo "usage: tools/setup.sh [run] [torch] [test] [bench] [build] [extension] [wheel] [aarch64] [dpa] [docs] [browser]" >&2
        exit 2
        ;;
    esac
done
