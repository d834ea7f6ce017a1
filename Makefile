# The commands of the README. Each makes the virtual environment itself when it is missing.
# PYTHON: the interpreter to make it with (3.11 or newer). TIER: directory or s3, for `demo` and `up`.
PYTHON ?= python3
VENV   ?= .venv
TIER   ?= directory
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

.PHONY: demo up test lint bench bench-failover bench-restarts bench-scale simulate pins crds pages
.DEFAULT_GOAL := demo

$(READY): requirements.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Tidemark needs Python 3.11 or newer: make PYTHON=python3.11")'
	@echo "making the virtual environment in $(VENV) (about 500 MB of packages, once)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements.txt
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

demo: $(READY)
	@$(BIN)/tidemark demo --tier $(TIER)

up: $(READY)
	@$(BIN)/tidemark up --tier $(TIER)

# FAST=1 leaves out the tests that are marked slow. JOBS: how many processes (one per core).
JOBS ?= auto
test: $(READY)
	@$(BIN)/python -m tests.programs
	@$(BIN)/python -m pytest --numprocesses $(JOBS) --dist loadgroup $(if $(FAST),-m "not slow")

lint: $(READY)
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python -m tidemark_operator.resources.crdgen --check crds
	@$(BIN)/python -m tidemark.configuration.page --check docs/configuration.md

bench: $(READY)
	@$(BIN)/python -m tests.benchmarks.brokers

# SEEDS=5000: so many runs of the simulated cluster. SEED=17: one of them again, with its whole story.
SEEDS ?= 1000
simulate: $(READY)
	@$(BIN)/python -m tests.simulation $(if $(SEED),--seed $(SEED),--seeds $(SEEDS))

# KILLS: how often the leader is killed (100).
bench-failover: $(READY)
	@$(BIN)/python -m tests.benchmarks.failover $(if $(KILLS),--kills $(KILLS))

# RESTARTS: how often the leader is restarted (50).
bench-restarts: $(READY)
	@$(BIN)/python -m tests.benchmarks.restarts $(if $(RESTARTS),--restarts $(RESTARTS))

bench-scale: $(READY)
	@$(BIN)/python -W ignore -m tests.benchmarks.scale

crds: $(READY)
	@$(BIN)/python -m tidemark_operator.resources.crdgen crds

# The pages of docs/ that are made from tables.
pages: $(READY)
	@$(BIN)/python -m tidemark.configuration.page docs/configuration.md

# Renew requirements.txt from pyproject.toml: hashes, no addresses.
pins: $(READY)
	@$(BIN)/pip-compile --quiet --all-extras --generate-hashes --strip-extras --allow-unsafe \
	  --no-emit-index-url --no-emit-trusted-host --no-emit-find-links --no-header --no-annotate \
	  --output-file requirements.txt pyproject.toml
