# `make demo` and `make test` need only make and a Python 3.11 or newer: they build .venv themselves.

VENV  := .venv
BIN   := $(VENV)/bin
STAMP := $(VENV)/.installed
JOBS  ?= 2

# Bytecode is kept, whatever the environment says: else every process that a test starts compiles the package anew.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help setup compile demo test test-pure test-slow test-cluster test-cluster-replica soak lint format types imports check fuzz docs reference requirements mutants bench bench-quick image clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# Rebuilt when what is to be installed changes; otherwise costs nothing.
$(STAMP): pyproject.toml constraints.txt tools/setup
	@tools/setup $(VENV)
	@touch $@

setup: compile  ## build .venv with everything in it, Spark and its Java included, and compile the core

compile: $(STAMP)  ## compile the core where a C compiler is; costs nothing while its sources are the same
	@$(BIN)/python tools/compile

demo: compile  ## watch all of it at work, its processes killed, nothing lost, and Spark's report
	$(BIN)/fastjournal demo --report build/demo-report.html

test: compile  ## run the tests on the compiled core, except the slow ones and those that need a cluster
	$(BIN)/pytest -n $(JOBS) --dist loadscope -m "not slow and not cluster" $(ARGS)

# Rooms without a compiled module, and the sweeps of the spool, are tested once, by `make test`.
test-pure: $(STAMP)  ## run the tests of the core, without processes and Spark, on the interpreted one
	FASTJOURNAL_PURE=1 $(BIN)/pytest -n $(JOBS) --dist loadscope -m "not slow and not cluster and not spark" \
		tests/unit tests/property tests/crash tests/golden \
		$(foreach room,archive cli replica spark tasks web,--ignore=tests/unit/$(room)) \
		--ignore=tests/crash/test_spool_sweeps.py $(ARGS)

test-slow: compile  ## run the slow tests
	$(BIN)/pytest -m "slow and not cluster" $(ARGS)

test-cluster-replica: compile  ## run the tests with three daemons and etcd, which must be installed; partitions take root
	$(BIN)/pytest tests/integration/replica $(ARGS)

test-cluster: compile  ## run the tests that start a Spark cluster of several processes
	$(BIN)/pytest -m cluster $(ARGS)

soak: compile  ## an hour of clients, kills, power cuts, full disks, stepped clocks; then judged. SOAK_MINUTES=2 for less
	@PYTHONPATH=tests/support $(BIN)/python tests/soak

lint: $(STAMP)  ## style and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python tools/unasync --check

format: $(STAMP)  ## mend what lint can mend
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/python tools/unasync

types: $(STAMP)  ## mypy --strict
	$(BIN)/mypy

imports: $(STAMP)  ## who may import whom
	$(BIN)/lint-imports

check: lint types imports test  ## all of the above: what CI runs

fuzz: $(STAMP)  ## any bytes give a value or our error; FUZZ_SECONDS=15 for each target
	tools/fuzz $(BIN)

docs: $(STAMP)  ## the documentation as HTML in docs/_build/html; a warning is an error
	$(BIN)/sphinx-build -W --keep-going -q -b html docs docs/_build/html
	@echo "docs/_build/html/index.html"

reference: $(STAMP)  ## write the parts of the documentation that are made from the code
	$(BIN)/python tools/reference --write

requirements: $(STAMP)  ## which tests show each requirement and each fault
	@$(BIN)/python tests/support/register.py

mutants: $(STAMP)  ## break each promise in a copy of the sources: its tests must fail; ARGS="--only F12"
	@$(BIN)/python tools/mutants $(ARGS)

bench: compile  ## every benchmark at full length: build/bench/index.html, and the table in the docs
	@$(BIN)/python -m pip install -q -c constraints.txt -e ".[bench]" || echo "measuring without the peers' packages"
	$(BIN)/python bench/suite.py --docs $(ARGS)

bench-quick: compile  ## every benchmark, rougher: build/bench/index.html
	$(BIN)/python bench/suite.py --quick $(ARGS)

image: $(STAMP)  ## the steps of the Dockerfile, run here without Docker
	$(BIN)/python deploy/docker/replay

clean:  ## remove .venv and everything built
	rm -rf $(VENV) .venv-fuzz build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find src tests bench -name __pycache__ -type d -prune -exec rm -rf {} +
