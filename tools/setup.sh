#!/bin/sh
# Prepares a fresh clone on Debian 12: system packages, virtual environment, Python packages, the
# extension. Used by the Makefile; each step leaves a stamp in .venv so that it runs once.
#
#   tools/setup.sh packages   Debian packages: installs them as root, else names the missing and stops
#   tools/setup.sh fuzzer     likewise clang, for make fuzz
#   tools/setup.sh aarch64    likewise a cross compiler and qemu, for make aarch64
#   tools/setup.sh dpa        likewise a bare-metal RISC-V compiler and qemu, for make dpa-count
#   tools/setup.sh venv       .venv with torch and the development tools
#   tools/setup.sh build      pip install -e . into .venv
set -eu
cd "$(dirname "$0")/.."

VENV=${VENV:-.venv}
PYTHON=${PYTHON:-python3}
TORCH=${TORCH:-torch==2.13.0}
PACKAGES="cmake ninja-build g++ libgtest-dev libgmock-dev libbenchmark-dev libhwy-dev libisal-dev \
ccache clang-format-14 python3-venv python3-dev iproute2 iptables nftables ethtool openmpi-bin libopenmpi-dev \
libibverbs-dev librdmacm-dev ibverbs-providers rdma-core qemu-system-x86 busybox-static kmod cpio systemd"

packages() {
    missing=""
    for package in $PACKAGES; do
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

fuzzer() (
    PACKAGES="clang-14 libclang-rt-14-dev"
    packages
)

aarch64() (
    PACKAGES="g++-aarch64-linux-gnu qemu-user-static cmake ninja-build"
    packages
)

dpa() (
    PACKAGES="gcc-riscv64-unknown-elf qemu-system-misc"
    packages
)

cpu_index() {
    # PyPI's torch for x86-64 brings gigabytes of CUDA; the CPU wheel has an index of its own. A
    # mirror that serves CPU wheels already, or a machine without that index, keeps its default.
    [ "${MCAST_TORCH_INDEX:-}" ] && echo "--index-url $MCAST_TORCH_INDEX"
    return 0
}

venv() {
    stamp="$VENV/.stamp-venv"
    if [ "$stamp" -nt pyproject.toml ] 2>/dev/null && [ "$stamp" -nt tools/setup.sh ]; then
        return 0
    fi
    [ -x "$VENV/bin/python" ] || "$PYTHON" -m venv "$VENV"
    # shellcheck disable=SC2046
    "$VENV/bin/pip" install -q --disable-pip-version-check $(cpu_index) "$TORCH"
    "$VENV/bin/pip" install -q --disable-pip-version-check numpy 'pytest>=8' 'pytest-xdist>=3.5' 'ruff>=0.8' expecttest rich click \
        matplotlib psutil pyyaml cloudpickle 'setuptools>=69' wheel
    touch "$stamp"
}

build() {
    stamp="$VENV/.stamp-build"
    if [ -e "$stamp" ] && [ -z "$(find CMakeLists.txt cmake setup.py pyproject.toml csrc/core csrc/bin \
        csrc/torch -newer "$stamp" -print -quit)" ] && ls torch_mcast/_C.*.so >/dev/null 2>&1; then
        return 0
    fi
    "$VENV/bin/pip" install -q --disable-pip-version-check --no-build-isolation --no-deps -e .
    touch "$stamp"
}

for step in "$@"; do
    case $step in
    packages | fuzzer | aarch64 | dpa | venv | build) "$step" ;;
    *)
        echo "usage: tools/setup.sh [packages] [fuzzer] [aarch64] [dpa] [venv] [build]" >&2
        exit 2
        ;;
    esac
done
