# make demo       set everything up and train a small FSDP2 model on two ranks
# make test       what a change must pass: C++ tests, format and lint, Python tests
# make test-all   the same, also the slow and multi-host tests
# make bench      the headline benchmark in a lab of 8 hosts, into benchmarks/results/
# make sanitize   core tests under ASan+UBSan and under TSan
# make mutants    plants faults into the core one by one; the tests must catch each
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

BENCH := $(BIN)/python -m torch_mcast.bench
RESULTS := benchmarks/results

.PHONY: bench demo test test-all test-cpp test-python sanitize mutants format lint setup build clean

demo: build
	MCAST_SHARED_MEMORY=off $(BIN)/torchrun --standalone --nproc-per-node 2 examples/train_fsdp.py

test: test-cpp lint test-python

test-all: export MCAST_TEST_ALL = 1
test-all: test sanitize mutants

# The headline sweep: 8 hosts on a switch of this machine, 1 Gbit/s, beside Gloo and, where they are
# installed, Open MPI and UFTP; then the micro-benchmarks. Needs root for the lab.
bench: build
	mkdir -p $(RESULTS)
	$(BENCH) --hosts 8 --rate 1gbit --mtu 1500 \
	  --ops broadcast,all_gather,reduce_scatter,all_reduce,ag_rs,fsdp2,barrier --sizes 64k,1M,8M,64M \
	  --backends mcast,mcast:ring,gloo --peers openmpi,uftp --repetitions 5 --warmup 1 \
	  --case-seconds 25 --json $(RESULTS)/lab-8.json --plot $(RESULTS)/lab-8.png
	$(CMAKE) -B build/bench -DMCAST_BUILD_BENCH=ON -DMCAST_BUILD_TESTS=OFF
	cmake --build build/bench -j $(JOBS)
	build/bench/mcast_bench_core | tee $(RESULTS)/micro.txt

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

mutants:
	@tools/setup.sh packages
	$(PYTHON) tools/mutants.py --jobs $(JOBS)

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
