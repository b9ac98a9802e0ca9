# make demo       set everything up and train a small FSDP2 model on two ranks
# make test       what a change must pass: C++ tests, format and lint, Python tests
# make test-all   the same, also the slow and multi-host tests
# make sanitize   core tests under ASan+UBSan and under TSan
# make format lint clean
#
# All of it works in a fresh clone on Debian 12; nothing needs to be active. Variables: PYTHON (3.10+),
# VENV, TORCH (requirement), JOBS.

VENV ?= .venv
PYTHON ?= python3
TORCH ?= torch==2.13.0
JOBS ?= $(shell nproc)
export VENV PYTHON TORCH
export MAX_JOBS ?= $(JOBS)

BIN := $(VENV)/bin
CPP := $(shell git ls-files 'csrc/*.cpp' 'csrc/*.h' 'tests/cpp/*.cpp' 'tests/cpp/*.h' \
         'benchmarks/*.cpp' 'benchmarks/*.h' 2>/dev/null)
CMAKE := cmake -S . -G Ninja -DMCAST_WERROR=ON -DMCAST_BUILD_TESTS=ON

.PHONY: demo test test-all test-cpp test-python sanitize format lint setup build clean

demo: build
	$(BIN)/torchrun --standalone --nproc-per-node 2 examples/train_fsdp.py

test: test-cpp lint test-python

test-all: export MCAST_TEST_ALL = 1
test-all: test sanitize

setup:
	@tools/setup.sh packages venv

build: export MCAST_WERROR ?= $(if $(MCAST_CI),1,0)
build:
	@tools/setup.sh packages venv build

test-cpp:
	@tools/setup.sh packages
	$(CMAKE) -B build/cpp -DPython3_EXECUTABLE=$(shell command -v $(PYTHON))
	cmake --build build/cpp -j $(JOBS)
	ctest --test-dir build/cpp --output-on-failure

test-python: build
	$(BIN)/python -m pytest

sanitize:
	@tools/setup.sh packages
	$(CMAKE) -B build/asan -DMCAST_SANITIZE=address,undefined -DCMAKE_BUILD_TYPE=Debug
	cmake --build build/asan -j $(JOBS)
	ctest --test-dir build/asan --output-on-failure
	$(CMAKE) -B build/tsan -DMCAST_SANITIZE=thread -DCMAKE_BUILD_TYPE=Debug
	cmake --build build/tsan -j $(JOBS)
	ctest --test-dir build/tsan --output-on-failure

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	clang-format-14 --dry-run --Werror $(CPP)

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	clang-format-14 -i $(CPP)

clean:
	rm -rf build build-* dist *.egg-info torch_mcast/_C.*.so torch_mcast/_build_info.py
	rm -rf .pytest_cache .ruff_cache
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
	rm -f $(VENV)/.stamp-build
