# Waystation. `make help` lists what can be made; each target sets up what it needs.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

# Python keeps what it compiled: fleets and tests start hundreds of processes, each of which would compile all it imports.
unexport PYTHONDONTWRITEBYTECODE

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
RUNS := $(VENV)/.runs
PIP := $(BIN)/python -m pip --disable-pip-version-check install --no-deps
PURE := tests/core tests/wire
SEEDS ?= 200
SECONDS ?= 60
MINUTES ?= 60
TEST := $(BIN)/pytest -m "not peer and not fault" --dist=loadgroup

# Tests with real processes and deadlines may fail beside others on a busy machine. What fails is tried once more, alone,
# and has failed if it does so again; the first failure stays on show, to be mended.
ALONE := --numprocesses=0 --last-failed --last-failed-no-failures=none
define again
{ test $$? = 1 && echo "=== what failed, once more and alone ===" && $(1) $(ALONE); }
endef

.PHONY: help setup java programs demo test check lab bench peers faults fuzz live soak docs rules mutants lock clean

help:  ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY)  ## Create .venv with everything the other targets need

# Two steps: what the demo and the commands need to run, and then the tools for development. Progress is
# shown where there is a terminal.
define quiet
$(if $(shell test -t 2 && echo terminal),,--quiet)
endef

$(VENV)/pyvenv.cfg:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' 2>/dev/null || { \
	  echo "the pipeline needs Python 3.11 to 3.14; $(PYTHON) is not. Try: make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { \
	  echo "$(PYTHON) cannot create a virtual environment; on Debian: apt-get install python3-venv" >&2; exit 1; }
	@$(BIN)/python -m pip --quiet uninstall --yes setuptools  # up to Python 3.11; nothing needs it

$(RUNS): requirements-demo.lock pyproject.toml | $(VENV)/pyvenv.cfg
	@echo "[1/2] installing what the demo needs into $(VENV): about 800 MB, most of it Spark ..."
	@$(PIP) $(quiet) --no-compile --require-hashes -r requirements-demo.lock
	@echo "[2/2] installing waystation ..."
	@$(PIP) --quiet --no-build-isolation -e .
	@touch $(RUNS)
	@echo "ready: $(BIN)/waystation --help"

$(READY): requirements.lock $(RUNS)
	@echo "installing the tools for development into $(VENV) ..."
	@$(PIP) $(quiet) --no-compile --require-hashes -r requirements.lock
	@touch $(READY)

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

demo: $(RUNS) java  ## Run a small fleet, break it on purpose, and see every message explained
	@$(BIN)/waystation demo

# Most of what follows the rules waits more than it computes; the Spark sessions stay in two processes.
test: setup java  ## Run all tests (no network, no other services); the rules with coverage
	$(TEST) --numprocesses=2 --cov --cov-fail-under=100 $(PURE)
	$(TEST) --numprocesses=4 $(PURE:%=--ignore=%) || $(call again,$(TEST) $(PURE:%=--ignore=%))

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
	$(BIN)/python scripts/write_promises.py --check
	$(BIN)/python scripts/write_twins.py --check
	$(BIN)/python scripts/write_reference.py --check

bench: setup java  ## Measure side by side with the alternatives (ONLY=name for one, RESUME=1 to go on); writes benchmarks/results
	RESUME=$(RESUME) $(BIN)/python -m benchmarks $(ONLY)
	$(BIN)/python scripts/write_figures.py
	$(BIN)/python scripts/write_reference.py

PEERS = $(BIN)/pytest -m "peer$(if $(filter ci,$(ONLY)), and ci)" $(if $(filter-out ci,$(ONLY)),-k "$(ONLY)")

peers: setup java programs  ## Test against real peers of another make and version 0.1 (ONLY=ci: one or two of each kind, ONLY=name)
	$(PEERS) || $(call again,$(PEERS))

faults: setup java  ## Look for faults for a long time: many random examples, anew every time
	WAYSTATION_HYPOTHESIS=faults $(BIN)/pytest -m "not peer" --timeout=3600

fuzz: setup  ## Fuzz every decoder and the life of a session, guided by coverage (SECONDS=60 each)
	@$(BIN)/python -c 'import atheris' 2>/dev/null || $(BIN)/uv pip install --quiet --python $(BIN)/python 'atheris>=3,<4'
	$(BIN)/python -m waystation.testing.fuzzing --seconds $(SECONDS)

live: setup  ## Five real nodes in network namespaces and Mosquitto, with loss, partitions and 500 x kill -9 (MINUTES=60)
	@$(call install,nft:nftables ip:iproute2) || echo "the live lab needs nftables and iproute2; on Debian: apt-get install" $$missing >&2
	$(BIN)/python -m waystation.testing.live --minutes $(MINUTES) --kills 500 \
	  --mosquitto "$$($(BIN)/python -m tests.peers.mosquitto_peer)"

soak: setup  ## Eight hours in simulated time, and real ones (MINUTES=60): memory, descriptors and tasks stay flat
	$(BIN)/python -m waystation.testing.soak --hours 8 --minutes $(MINUTES)

docs: setup java  ## Build what is generated in docs/ and run every example in it
	$(BIN)/python scripts/prove_rules.py
	$(BIN)/python scripts/draw_states.py
	$(BIN)/python scripts/write_figures.py
	$(BIN)/python scripts/write_promises.py
	$(BIN)/python scripts/write_twins.py
	$(BIN)/python scripts/write_reference.py
	$(BIN)/pytest tests/project
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@! grep -rlE '(src|srcset)="(https?:)?//|<link[^>]*stylesheet[^>]*(https?:)?//' site --include=*.html || { \
	  echo "these pages load something from elsewhere" >&2; exit 1; }

rules: setup  ## Write the proofs of the rules after marking a test
	$(BIN)/python scripts/prove_rules.py

mutants: setup  ## Change the routing and multicast code at random, and see that a test notices
	$(BIN)/mutmut run

lock: setup  ## Pin the newest versions of all dependencies in requirements.lock
	$(BIN)/uv pip compile pyproject.toml --extra dev --universal --python-version 3.11 \
	  --generate-hashes --no-emit-index-url --no-header --upgrade --quiet -o requirements.lock
	printf 'editables\nhatchling\n' | $(BIN)/uv pip compile pyproject.toml - --extra demo --universal --python-version 3.11 \
	  --generate-hashes --no-emit-index-url --no-header --quiet -c requirements.lock -o requirements-demo.lock

clean:  ## Remove what was built
	rm -rf $(VENV) .coverage .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache mutants dist site
