# The commands of the README. Each makes the virtual environment itself when it is missing.
# PYTHON: the interpreter to make it with (3.11 or newer). TIER: directory or s3, for `demo` and `up`.
PYTHON ?= python3
VENV   ?= .venv
TIER   ?= directory
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

.PHONY: demo up test lint bench bench-scale pins crds
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

# FAST=1 leaves out the tests that are marked slow.
test: $(READY)
	@$(BIN)/python -m pytest $(if $(FAST),-m "not slow")

lint: $(READY)
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python -m tidemark_operator.resources.crdgen --check crds

bench: $(READY)
	@$(BIN)/python -m tests.benchmarks.brokers

bench-scale: $(READY)
	@$(BIN)/python -W ignore -m tests.benchmarks.scale

crds: $(READY)
	@$(BIN)/python -m tidemark_operator.resources.crdgen crds

# Renew requirements.txt from pyproject.toml: hashes, no addresses.
pins: $(READY)
	@$(BIN)/pip-compile --quiet --all-extras --generate-hashes --strip-extras --allow-unsafe \
	  --no-emit-index-url --no-emit-trusted-host --no-emit-find-links --no-header --no-annotate \
	  --output-file requirements.txt pyproject.toml
