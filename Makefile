# make demo       set everything up and train a small FSDP2 model on four ranks
# make test       tests that every change must pass: C++ tests, format and lint, Python tests
# make test-all   the same, with the slow tests and the sanitizers
# make test-torch PyTorch's own distributed tests, compared with Gloo; continues where it was stopped
# make quick      a check of one minute after an edit of the core: C++ tests with few seeds, one job of two ranks
# make soak       simulations with fresh seeds, MINUTES=60
# make bench      the headline benchmark in a lab of 8 hosts, into benchmarks/results/
# make sanitize   core tests under ASan+UBSan and under TSan
# make fuzz       libFuzzer targets, SECONDS=60 each, from the inputs in tests/fuzz/corpus
# make fuzz-long  INPUTS=10000000 of TARGET=group without sanitizers, then the new inputs with them
# make aarch64    core tests, cross-built, in qemu's user mode
# make dpa-count  instructions of the DPA kernel per chunk, on RV64 in qemu; must be what the file says
# make test-frameworks   Ray, torchft, Megatron-core, torchtitan, Lightning, Slurm, ... (docs/stacks.md)
# make wheel      a wheel for this torch and Python that installs without a compiler, into dist/; MACHINE=aarch64
# make test-wheel  the Python tests of make test against an installed wheel, WHEEL=dist/... or a new one
# make release-check   all that a release takes but its tag and upload (docs/releasing.md)
# make mutants    plants faults into core, extension and package one by one; the tests must catch each. make test-all
#                 plants those whose file or tests have changed since
# make format lint clean
# make docs       the docs site, into build/site, with its links checked; make docs-test opens it in a browser
#
# All targets work in a fresh clone on Debian 12, make demo also on Ubuntu 24.04. No virtual environment needs to be
# active. Each target installs its requirements: demo a compiler and torch, test also GoogleTest, linters and QEMU, bench
# Open MPI. Variables: PYTHON (3.10+), VENV, TORCH (requirement), MCAST_TORCH_INDEX (tools/setup.sh), JOBS, SECONDS,
# MCAST_JOIN (number of sources compiled as one; see cmake/Join.cmake).

VENV ?= .venv
PYTHON ?= python3
TORCH ?= torch==2.13.0
JOBS ?= $(shell nproc)
SECONDS ?= 60
export VENV PYTHON TORCH
export MAX_JOBS ?= $(JOBS)
# A global variable: set for one target only, it would not apply to the others, and everything would be compiled
# twice, with -Werror and without.
export MCAST_WERROR ?= $(if $(MCAST_CI),1,0)

BIN := $(VENV)/bin
# CMake and Ninja of .venv, if the machine has none.
export PATH := $(PATH):$(abspath $(BIN))
# The folder where setup.py builds the extension. The C++ tests are built there, too, so that both share one core
# library. build/cpp is a link to it.
TREE = build/$(shell $(PYTHON) -c 'import sys; print(sys.implementation.cache_tag)')
CPP := $(shell git ls-files 'csrc/*.cpp' 'csrc/*.h' 'csrc/*.c' 'tests/cpp/*.cpp' 'tests/cpp/*.h' 'tests/cpp/*.c' \
         'tests/fuzz/*.cpp' 'tests/fuzz/*.h' 'benchmarks/*.cpp' 'benchmarks/*.h' 2>/dev/null)
CMAKE = cmake -S . -G Ninja -DMCAST_WERROR=ON -DMCAST_BUILD_TESTS=ON $(if $(MCAST_JOIN),-DMCAST_JOIN=$(MCAST_JOIN))

# C++ tests to run in parallel: one more than cores, since tests of processes and of services often wait.
AT_ONCE := $(shell expr $(JOBS) + 1)

BENCH := $(BIN)/python -m torch_mcast.bench
RESULTS := benchmarks/results

.PHONY: bench bench-core bench-setup frameworks-setup test-frameworks release-check demo test test-beside test-all test-cpp wheel wheel-setup test-python \
  test-wheel test-core test-python-alone test-torch test-torch-guarded headers quick soak sanitize fuzz \
  fuzz-long mutants \
  aarch64 dpa-count format lint setup build build-tests build-python-tests docs docs-setup docs-test browser-setup \
  clean

# Few tokens per step, so that the network (here loopback) takes a large part of the time. The address is given, because
# the ranks would find each other by this host's name, which may not resolve in a chroot or container.
LOCAL := --rdzv-backend c10d --rdzv-endpoint 127.0.0.1:0 --local-addr 127.0.0.1
demo:
	@tools/setup.sh run extension
	MCAST_SHARED_MEMORY=off $(BIN)/torchrun $(LOCAL) --nproc-per-node 4 examples/train_fsdp.py \
	  --steps 40 --batch 1 --context 32 --width 384 --prefetch 2

bench-setup:
	@tools/setup.sh bench

# More pairs of torch and Python: tools/wheel.py --help.
wheel: build wheel-setup
	$(if $(filter-out $(shell uname -m),$(MACHINE)),tools/aarch64.sh packages)
	$(BIN)/python tools/wheel.py $(if $(MACHINE),--machine $(MACHINE))

# Version, changelog, archive of the sources, a wheel, its index page, and installs from both; into dist/.
release-check: build wheel-setup
	$(BIN)/python tools/release.py check

wheel-setup:
	@tools/setup.sh wheel

frameworks-setup: setup
	@tools/setup.sh frameworks

# The stacks of docs/stacks.md; make test-all runs the same tests.
test-frameworks: export MCAST_TEST_ALL = 1
test-frameworks: build frameworks-setup
	$(BIN)/python -m pytest tests/python/frameworks tests/python/lab/test_cluster_page.py -k "frameworks or slurm"

# The extension is built first. Python tests then run at the same time as the C++ tests, which are compiled and run at
# nice 19, because Python tests often wait. Where one fails, the other still runs to its end. build/steps.tsv has the
# wall and CPU seconds of each step.
TIMED = $(PYTHON) tools/timed.py build/steps.tsv
STEP = $(MAKE) --no-print-directory

test:
	@rm -f build/steps.tsv build/beside.log
	@$(TIMED) "packages" $(STEP) setup
	@$(TIMED) "extension" $(STEP) build build-python-tests
	@nice -n 19 $(STEP) test-beside > build/beside.log 2>&1 & \
	beside=$$!; trap 'kill $$beside 2> /dev/null' EXIT; trap 'exit 130' INT; trap 'exit 143' TERM; \
	failed=; $(TIMED) "Python tests" $(STEP) test-python || failed=1; \
	wait $$beside || failed=1; \
	cat build/beside.log; [ -z "$$failed" ]
	@$(PYTHON) tools/timed.py --table build/steps.tsv

test-beside:
	@$(TIMED) "lint" $(STEP) lint
	@$(TIMED) "build of C++ tests" $(STEP) build-tests
	@$(TIMED) "C++ tests" $(STEP) test-cpp

# These take hours, so a step that fails does not keep the others from being run.
AFTER_TEST := test-core test-python-alone test-wheel bench-core headers sanitize dpa-count aarch64 fuzz test-torch-guarded mutants
test-all: export MCAST_TEST_ALL = 1
test-all: bench-setup frameworks-setup wheel-setup browser-setup docs
	@failed=; $(STEP) test || failed=test; \
	for step in $(AFTER_TEST); do $(TIMED) $$step $(STEP) $$step || failed="$$failed $$step"; done; \
	$(PYTHON) tools/timed.py --table build/steps.tsv; \
	[ -z "$$failed" ] || { echo "failed: $$failed"; exit 1; }

# The headline sweep: 8 hosts on a switch of this machine, 1 Gbit/s, compared with Gloo and, if installed, Open MPI and
# UFTP; then the micro-benchmarks. The lab needs root.
bench: build bench-setup
	mkdir -p $(RESULTS)
	$(BENCH) --hosts 8 --rate 1gbit --mtu 1500 \
	  --ops broadcast,all_gather,reduce_scatter,all_reduce,ag_rs,fsdp2,barrier --sizes 64k,1M,8M,64M \
	  --backends mcast,mcast:ring,gloo --peers openmpi,openmpi_tuned,uftp --repetitions 5 --warmup 1 \
	  --case-seconds 25 --json $(RESULTS)/lab-8.json --plot $(RESULTS)/lab-8.png
	$(STEP) bench-core

# The micro-benchmarks. `make test-all` runs each for a moment, so that they keep compiling.
bench-core: bench-setup
	mkdir -p $(RESULTS)
	$(CMAKE) -B build/bench -DMCAST_BUILD_BENCH=ON -DMCAST_BUILD_TESTS=OFF -DMCAST_BUILD_TORCH=OFF
	cmake --build build/bench -j $(JOBS) -t mcast_bench_core
	build/bench/mcast_bench_core $(if $(MCAST_TEST_ALL),--benchmark_min_time=0.01) > $(RESULTS)/micro.txt
	cat $(RESULTS)/micro.txt

setup:
	@tools/setup.sh test

build:
	@tools/setup.sh run build

build-tests: MCAST_WERROR = 1
build-tests: setup build
	$(CMAKE) -B $(TREE) "-DMCAST_EXTENSION_DIR=$(CURDIR)/$(TREE)/extension" \
	  -DMCAST_BUILD_RARE_TESTS=$(if $(filter 1,$(MCAST_TEST_ALL)),ON,OFF)
	cmake --build $(TREE) -j $(JOBS)
	[ -L build/cpp ] || rm -rf build/cpp
	ln -sfn $(notdir $(TREE)) build/cpp

# Libraries and programs of the Python tests. Make compares file times instead of running Ninja each time: Ninja may be
# running for build-tests in the same folder, which it does not lock.
PYTHON_TESTS = $(addprefix $(TREE)/python_tests/,test_extensions.so placement_rows)
PYTHON_TESTS_FROM := cmake/TestExtensions.cmake tests/python/support/placement_rows.cpp \
  $(wildcard tests/python/support/fake_device/*.cpp tests/python/support/fake_device/*.h tests/python/support/batching/*.cpp \
  csrc/aggregation/plan/placement.*)
build-python-tests: $(PYTHON_TESTS)
$(PYTHON_TESTS) &: $(PYTHON_TESTS_FROM) | setup build
	cmake -S . -G Ninja -B $(TREE) -DMCAST_BUILD_TESTS=ON "-DMCAST_EXTENSION_DIR=$(CURDIR)/$(TREE)/extension"
	cmake --build $(TREE) -j $(JOBS) -t mcast_python_tests
	@touch $(PYTHON_TESTS)

# After the tests, checks that every counter of the core was raised by some test.
test-cpp: build-tests
	rm -rf build/reach
	mkdir build/reach
	MCAST_TEST_REACH="$(CURDIR)/build/reach" \
	  ctest --test-dir build/cpp -j $(AT_ONCE) --output-on-failure --output-junit ctest.xml
	$(PYTHON) tools/reach.py build/reach

# The core without any product: warnings are errors, all its C++ tests, and two ranks over both paths.
ALONE := -DMCAST_AGGREGATION=OFF -DMCAST_HOST_ENGINE=OFF -DMCAST_SIMULATOR=OFF -DMCAST_VERBS=OFF
test-core: setup
	$(CMAKE) -B build/core $(ALONE) -DMCAST_BUILD_RARE_TESTS=OFF -DMCAST_BUILD_TORCH=ON \
	  -DPython3_EXECUTABLE=$(CURDIR)/$(BIN)/python "-DMCAST_EXTENSION_DIR=$(CURDIR)/build/core/torch_mcast"
	cmake --build build/core -j $(JOBS)
	ctest --test-dir build/core -j $(AT_ONCE) --output-on-failure
	$(BIN)/python tools/core_alone.py build/core

# A check of one minute after an edit of the core: unit tests, simulated seeds and two real ranks.
SLOWER := _auth|_sealed|offload|aggregation|runtime|host_engine|sim|dpa|big_endian
quick: export MCAST_JOIN ?= 8
quick: build-tests
	MCAST_TEST_SEEDS=10 ctest --test-dir build/cpp -j $(AT_ONCE) --output-on-failure -E "$(SLOWER)"
	MCAST_TEST_ALL=1 $(BIN)/python -m pytest -q tests/python/test_training.py -k "fsdp2_fp32 and not slots and not engine"

# Fresh seeds for MINUTES; failures are kept in build/soak.
MINUTES ?= 60
soak: export MCAST_TEST_ALL = 1
soak: build-tests
	$(BIN)/python tools/soak.py --minutes $(MINUTES) --jobs $(JOBS)

# In parallel, since most tests wait most of the time. Bytecode is kept even if the environment forbids it: without it
# each of the processes, which are hundreds, compiles the tests and the package again.
test-python test-python-alone test-wheel: export PYTHONDONTWRITEBYTECODE =
test-python: setup build build-python-tests
	@# Parallel workers continue if a file cannot be imported; this reports it within seconds, and compiles the tests.
	@$(BIN)/python -m pytest --collect-only -qq > build/collected.txt || { cat build/collected.txt; false; }
	$(BIN)/python -m pytest -m "not alone" -n $(shell expr 2 '*' $(JOBS)) \
	  --durations 40 --junitxml build/pytest.xml

# Tests that measure or take most of the memory; all of them are in the slow tier.
test-python-alone: setup build build-python-tests
	$(BIN)/python -m pytest -m alone --junitxml build/pytest-alone.xml

# The package is not taken from here: tools/wheel_tests.py.
test-wheel: setup build build-python-tests wheel-setup
	$(BIN)/python tools/wheel_tests.py $(if $(WHEEL),--wheel $(WHEEL)) -n $(shell expr 2 '*' $(JOBS)) \
	  --junitxml $(CURDIR)/build/pytest-wheel.xml

# One test after another, each with a time limit. Results are in build/torch-tests, the table in docs/torch-tests.md.
test-torch: build
	nice $(BIN)/python tests/torch/run.py
	nice $(BIN)/python tests/torch/run.py --world 4
	nice $(BIN)/python tests/torch/run.py --world 8 --write

# The tests that pass, in guarded groups.
test-torch-guarded: build
	$(BIN)/python tests/torch/run.py --security auth --again
	$(BIN)/python tests/torch/run.py --security sealed --again

# Checks that every header of the core compiles alone.
headers: build-tests
	cmake --build $(TREE) -j $(JOBS) -t mcast_headers

# The first installed version of those in tools/setup.sh. Evaluated at its use, which is after set-up.
CLANGS = $(shell sed -n 's/^CLANGS="\(.*\)"/\1/p' tools/setup.sh)
CLANG_VERSION = $(shell for n in $(CLANGS); do command -v clang++-$$n > /dev/null && echo $$n && break; done)
CLANG = -DCMAKE_CXX_COMPILER=clang++-$(CLANG_VERSION) -DCMAKE_C_COMPILER=clang-$(CLANG_VERSION)
# For ASan, Clang compiles in half of GCC's time; for TSan, in the same time.
ASAN = -DMCAST_SANITIZE=address,undefined -DCMAKE_BUILD_TYPE=Debug -DMCAST_BUILD_RARE_TESTS=ON $(CLANG)
# Without dpa, offload and sim, which have one thread: TSan refuses the fences of the kernel, and the simulator takes
# longer than all the others.
TSAN := -DMCAST_SANITIZE=thread -DCMAKE_BUILD_TYPE=Debug -DMCAST_BUILD_RARE_TESTS=OFF
# Tests with memory that is mapped twice in one process: the sanitizer sees neither that it is the same memory nor what
# orders the accesses. In the last one a hostile client has several operations write to the same bytes of its own.
TWICE := EngineRanks.RanksOfOneHostMoveDataInMemory:EngineRanks.AndInTensors*:EngineRanks.*EndsInMemory:EngineLimits.AHostileClient*

sanitize: setup
	$(CMAKE) -B build/asan $(ASAN)
	cmake --build build/asan -j $(JOBS)
	ctest --test-dir build/asan -j $(JOBS) --output-on-failure
	$(CMAKE) -B build/tsan $(TSAN)
	cmake --build build/tsan -j $(JOBS)
	GTEST_FILTER='-$(TWICE)' ctest --test-dir build/tsan -j $(JOBS) --output-on-failure -E '^sim$$'

FUZZ = -DMCAST_BUILD_FUZZ=ON -DMCAST_BUILD_TESTS=OFF $(CLANG)
fuzz: setup
	$(CMAKE) -B build/fuzz $(FUZZ)
	cmake --build build/fuzz -j $(JOBS)
	$(PYTHON) tools/fuzz.py build/fuzz $(SECONDS)

TARGET ?= group
INPUTS ?= 10000000
fuzz-long: setup
	$(CMAKE) -B build/fuzz $(FUZZ)
	cmake --build build/fuzz -j $(JOBS) -t mcast_fuzz_$(TARGET)
	$(CMAKE) -B build/fuzz-long $(FUZZ) -DMCAST_SANITIZE=fuzzer-no-link
	cmake --build build/fuzz-long -j $(JOBS) -t mcast_fuzz_$(TARGET)
	$(PYTHON) tools/fuzz.py build/fuzz-long $(INPUTS)x --again build/fuzz $(TARGET)

# Builds the core and its tests for another architecture, in build/aarch64, and runs them in qemu's user mode.
aarch64:
	@JOBS=$(JOBS) tools/aarch64.sh

# Compares the kernel of csrc/dpa with benchmarks/dpa-counts.json.
dpa-count:
	@tools/setup.sh dpa
	$(PYTHON) tools/dpa_count.py

mutants: setup build
	$(PYTHON) tools/mutants.py --jobs $(JOBS) $(if $(filter 1,$(MCAST_TEST_ALL)),--stale)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run --Werror $(CPP)
	$(BIN)/python -m mypy
	$(PYTHON) tools/measures.py
	$(PYTHON) tools/lint_docs.py
	$(PYTHON) tools/lint_words.py
	$(PYTHON) tools/mutants.py --list > /dev/null

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(CPP)

docs-setup:
	@tools/setup.sh docs

browser-setup:
	@tools/setup.sh browser

# Not --quiet, with which --strict sees no warnings. The variable leaves out an advertisement of the theme's makers.
docs: docs-setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	$(PYTHON) tools/check_site.py build/site

docs-test: export MCAST_TEST_ALL = 1
docs-test: setup docs browser-setup
	$(BIN)/python -m pytest tests/python/test_site.py

clean:
	rm -rf build build-* dist *.egg-info torch_mcast/_C.*.so torch_mcast/_build_info.py torch_mcast/mcast-aggregator torch_mcast/mcast-simulate torch_mcast/mcast-engine
	rm -rf .pytest_cache .ruff_cache
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
	rm -f $(VENV)/.stamp-build $(VENV)/.stamp-extension
