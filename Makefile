# The commands of the README. Each creates the virtual environment if it is missing.
# PYTHON: the interpreter to create it with (3.11 or newer). VENV: its folder; each interpreter needs its own. TIER: directory or s3, for `demo` and `up`; ENGINE: tidemark or kafka.
PYTHON ?= python3
VENV   ?= .venv
TIER   ?= directory
ENGINE ?= tidemark
BIN    := $(VENV)/bin
# Installed packages, by purpose: demo and `up`; Spark; plots; readers of tables; all, for tests and lint.
RUN    := $(VENV)/.run
SPARK  := $(VENV)/.spark
PLOTS  := $(VENV)/.plots
READERS := $(VENV)/.readers
ALL    := $(VENV)/.all
# The site of docs/: its own environment, and scripts beside its theme. ADDRESS: where `make docs` serves it.
DOCS    := .venv-docs
THEME   := build/docs-theme
ADDRESS ?= localhost:8000
# The lists name every package with its hash, so pip must not resolve dependencies itself: for an extra it would select a
# newer release than the pinned one, and then refuse it because its hash is unknown.
PIP    := $(BIN)/pip install --quiet --disable-pip-version-check

# An environment keeps the interpreter that it was created from. Another PYTHON would be ignored.
BUILD := -c 'import sys; print(sys.base_prefix, sys.version)'
ifeq ($(origin PYTHON),command line)
ifneq ($(wildcard $(BIN)/python),)
ifneq ($(shell $(PYTHON) $(BUILD)),$(shell $(BIN)/python $(BUILD)))
$(error $(VENV) was created from another interpreter than $(PYTHON). Choose another folder, such as VENV=.venv-other, or delete $(VENV))
endif
endif
endif

.PHONY: kafka-kills demo up cli spark columnar plots readers test test-all test-long retest e2e e2e-quick e2e-argocd coverage lint bench bench-all bench-latency bench-cold bench-cold-brokers bench-encryption bench-failover bench-restarts bench-operator bench-lives bench-pipeline bench-executors bench-scale bench-install reproducible \
  simulate fuzz histories full-disk export-kills export-many pipeline-proof release sbom pins crds argocd pages docs site conformance compatibility
.DEFAULT_GOAL := demo

$(RUN): requirements/run.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Tidemark needs Python 3.11 or newer: make PYTHON=python3.11")'
	@$(PYTHON) -m tools.interpreters
	@echo "creating the virtual environment in $(VENV) (about 300 MB on disk, once)"
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) --no-deps --require-hashes -r requirements/run.txt
	@$(PIP) --no-deps --no-build-isolation --editable .
	@touch $@

$(SPARK): requirements/spark.txt $(RUN)
	@echo "installing Spark (about 900 MB on disk, once)"
	@$(PIP) --no-deps --require-hashes -r requirements/spark.txt
	@touch $@

$(PLOTS): requirements/plots.txt $(RUN)
	@$(PIP) --no-deps --require-hashes -r requirements/plots.txt
	@touch $@

$(READERS): requirements/readers.txt $(RUN)
	@$(PIP) --no-deps --require-hashes -r requirements/readers.txt
	@touch $@

$(ALL): requirements.txt $(SPARK)
	@echo "installing the packages of tests and lint (about 450 MB on disk, once)"
	@$(PIP) --no-deps --require-hashes -r requirements.txt
	@touch $@

demo: $(RUN)
	@$(BIN)/tidemark demo --tier $(TIER) --engine $(ENGINE)

up: $(RUN)
	@$(BIN)/tidemark up --tier $(TIER) --engine $(ENGINE)

# The command line and the kubectl plugin, in $(BIN).
cli: $(RUN)

# Packages of `tidemark spark`; the demo installs them itself, in the background.
spark: $(SPARK)

# Optional jar with which Spark reads the data source as columns, in PySpark's folder of jars (needs a JDK).
columnar: $(SPARK)
	@$(BIN)/python -m tools.columnar_jar

# Packages that draw the plots of examples/12-delays-by-hour and of examples/notebooks (about 100 MB on disk).
plots: $(PLOTS)

# PyIceberg, delta-rs and DuckDB, which read the tables of examples/10-export (about 400 MB on disk).
readers: $(READERS)

# A run starts hundreds of processes: compile their imports once, whatever the environment says.
test test-all test-long retest coverage: export PYTHONDONTWRITEBYTECODE :=
# Tests wait for half of their time, so the default number of processes (JOBS) is two for each core, at most eight.
# tests/conftest.py orders them: the longest chains of tests start first.
JOBS ?= $(shell n=$$(nproc 2>/dev/null || getconf _NPROCESSORS_ONLN); echo $$((n < 4 ? 2 * n : 8)))
PYTEST := $(BIN)/python -m pytest --numprocesses $(JOBS) --dist loadgroup --no-loadscope-reorder

# Ten minutes on two cores: every kind of proof once. FAST=1 also leaves out tests marked slow.
test: export TIDEMARK_TEST_EFFORT := quick
test: $(ALL)
	@$(BIN)/python -m tools.programs
	@$(PYTEST) -m "not long and not full$(if $(FAST), and not slow)"

# All tests that take seconds, and all examples of property tests.
test-all: $(ALL)
	@$(BIN)/python -m tools.programs
	@$(PYTEST) -m "not long"

# Tests that take minutes: `make test-all` runs the shortest one of each group.
test-long: $(ALL)
	@$(BIN)/python -m tools.programs
	@$(PYTEST) -m long

# Images, charts and pods on a real kubelet: with kind and Docker, else as root on Debian on a node that the run makes.
# PROVIDER: kind or node. CHAPTERS: some of them (CHAPTERS=? names them). Not a part of `test`, because it needs more permissions than tests should have.
e2e: $(ALL)
	@$(BIN)/python -m e2e.pods $(PROVIDER) $(CHAPTERS)

# The part that CI runs, in minutes; on a machine that cannot run pods it prints the cause and passes.
e2e-quick: $(ALL)
	@$(BIN)/python -m e2e.pods.quick

# Time until brokers in pods serve, placeholders are filled and another operator leads; size of the images.
bench-install: $(ALL)
	@$(BIN)/python -m e2e.pods $(PROVIDER) speed

# Builds the images of operator and broker twice from nothing, and compares them bit by bit.
reproducible: $(ALL)
	@$(BIN)/python -m e2e.pods.reproducible

# Runs the failed tests of the last run again, one at a time, until one fails again.
retest: $(ALL)
	@$(BIN)/python -m tools.retest

# The tests of `test-all` with coverage of lines and branches, child processes included; slower.
coverage: $(ALL)
	@$(BIN)/python -m tools.programs
	@$(PYTEST) --cov --cov-report=term $(if $(FAST),-m "not slow and not long")

lint: $(ALL)
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/mypy --python-version 3.13
	@$(BIN)/python -m tools.interpreters --sources
	@$(BIN)/mypy --config-file tests/mypy.ini
	@$(BIN)/lint-imports
	@$(BIN)/python -m tools.dead_code
	@$(BIN)/python -m tools.language --check
	@$(BIN)/python -m tidemark_operator.resources.crdgen --check crds
	@$(BIN)/python -m tools.chart_files --check charts/tidemark-base/files
	@$(BIN)/python -m tools.argocd_files --check argocd/argocd-cm.yaml
	@$(BIN)/python -m tidemark_operator.pages --check docs/reference
	@$(BIN)/python -m tidemark.configuration.page --check docs/reference/configuration.md
	@$(BIN)/python -m tidemark.metrics.page --check docs/reference/metrics.md
	@$(BIN)/python -m tidemark.metrics.dashboards --check charts/tidemark/files/dashboards
	@$(BIN)/python -m tests.suites.page --check docs/reference/compatibility.md
	@$(BIN)/python -m tidemark_broker.api.serving.reference_page --check docs/reference/protocol.md
	@$(BIN)/python -m tidemark_cli.reference_page --check docs/reference/cli.md
	@$(BIN)/python -m tools.traceability --check docs/traceability.md
	@$(BIN)/python -m tools.top_picture --check docs/images/top.svg
	@$(BIN)/python -m tests.benchmarks.page --check docs/benchmarks

# Test suites of other projects, and the same requests to Tidemark and to Apache Kafka (SUITE=oracle). SUITE: one suite; ONLY:
# tests whose names contain this; SIDE=kafka: on Apache Kafka.
conformance: $(ALL)
	$(if $(filter oracle,$(SUITE)),,@$(BIN)/python -m tests.suites $(SUITE) $(if $(ONLY),--only '$(ONLY)') $(if $(filter kafka,$(SIDE)),--kafka))
	$(if $(filter-out oracle,$(SUITE)),,@$(BIN)/python -m tests.conformance.oracle $(if $(ONLY),--only '$(ONLY)'))

# Writes docs/reference/compatibility.md from the results of whole suites.
compatibility: $(ALL)
	@$(BIN)/python -m tests.suites.page docs/reference/compatibility.md

# Tidemark and Apache Kafka in turn. ONLY: measures whose names contain this, such as ONLY='RF 3'.
bench: $(ALL)
	@$(BIN)/python -m tests.benchmarks.brokers $(if $(ONLY),--only '$(ONLY)')

# Latency of single records at fixed rates, Tidemark and Apache Kafka in turn. ONLY: measures whose names match. ROUNDS: of both (5).
# QUICK=1: one short round, to try the command. STALLS=0: no record of what slow requests of Tidemark coincide with.
bench-latency: $(ALL)
	@$(BIN)/python -m tests.benchmarks.latency $(if $(ONLY),--only '$(ONLY)') $(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(QUICK),--quick) \
	  $(if $(filter 0,$(STALLS)),--without-stalls)

# Renews docs/benchmarks. The checkout must have no changes, because the figures belong to its commit.
bench-all: bench bench-latency bench-failover
	@mkdir -p docs/benchmarks/results
	@for name in brokers latency failover; do \
	  cp build/benchmarks/$$name-$$(git rev-parse --short=12 HEAD).json docs/benchmarks/results/$$name.json || exit 1; done
	@$(BIN)/python -m tests.benchmarks.page docs/benchmarks

# Reads of what only the tier has (a local MinIO), beside Apache Kafka with LocalTieredStorage. ONLY='readers 60' or 'produce'.
# ROUNDS: of both (3). MEGABYTES: read by all readers together (480). SIDE=tidemark: without Apache Kafka. DISK=2000: MB of our disk cache.
# TIER=directory: of our broker, as Apache Kafka has one. PINNED=1: the broker has a core of its own.
bench-cold: $(ALL)
	@$(BIN)/python -m tests.benchmarks.cold_reads $(if $(ONLY),--only '$(ONLY)') $(if $(ROUNDS),--rounds $(ROUNDS)) \
	  $(if $(MEGABYTES),--megabytes $(MEGABYTES)) $(if $(SIDE),--side $(SIDE)) $(if $(DISK),--disk-cache $(DISK)) \
	  $(if $(TIER),--tier $(TIER)) $(if $(PINNED),--pinned)

# The same for 1, 2 and 4 brokers whose store answers after 20 ms. ROUNDS: 3, MEGABYTES: 480.
bench-cold-brokers: $(ALL)
	@$(BIN)/python -m tests.benchmarks.serving_brokers $(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(MEGABYTES),--megabytes $(MEGABYTES))

# Clients and replication in clear and with TLS, compared with Apache Kafka.
bench-encryption: $(ALL)
	@$(BIN)/python -m tests.benchmarks.encryption

# Size and read rate of segments that are compressed and encrypted in a local MinIO, and a rotation of their key. ROUNDS=21
.PHONY: bench-stored-forms
bench-stored-forms: $(ALL)
	@$(BIN)/python -m tests.benchmarks.stored_forms $(if $(ROUNDS),--rounds $(ROUNDS))

# SEEDS: number of runs of the simulated cluster, of all kinds in turn. SEED=17: this run only, with its event log.
# KIND: moves, backups, restores, down (etcd is restored while a broker is down), torn (the same, and another broker has lost its tail), heads, lag, readers, or tables (a topic and its table).
SEEDS ?= 1000
simulate: $(ALL)
	@$(BIN)/python -m tests.simulation $(if $(SEED),--seed $(SEED),--seeds $(SEEDS)) $(if $(KIND),--$(KIND))
	@$(if $(KIND),,$(BIN)/python -m tests.simulation --tables $(if $(SEED),--seed $(SEED),--seeds $(SEEDS)))

# SECONDS: duration of sending invalid bytes (60).
fuzz: $(ALL)
	@$(BIN)/python -m tests.fuzz $(if $(SECONDS),--seconds $(SECONDS))

# Stock clients on three brokers with injected faults, one round per seed. MINUTES: total duration (5). SEED: one round.
# KAFKA=1: on Apache Kafka's brokers.
histories: $(ALL)
	@$(BIN)/python -m tests.histories $(if $(MINUTES),--minutes $(MINUTES)) $(if $(SEED),--seed $(SEED)) $(if $(KAFKA),--kafka)

# Fills and frees the disk of one of three brokers under load. SEEDS: number of runs (20). SEED: one run.
# Mounts small file systems, so it needs root; about a minute per seed.
full-disk: $(ALL)
	@$(BIN)/python -m tests.full_disk $(if $(SEED),--first $(SEED) --seeds 1,$(if $(filter command line,$(origin SEEDS)),--seeds $(SEEDS)))

# Kills the operator at every call that changes Kubernetes or Apache Kafka (needs Java and Maven).
kafka-kills: $(ALL)
	@KAFKA_KILLS=1 $(BIN)/python -m pytest -q -s --timeout 3600 tests/integration/kafka_engine/test_killed_at_every_call.py

# The example of an export to Iceberg; exports whose processes are killed at each step of a commit, or superseded by another job.
# ROUNDS: repetitions (1). TABLE: iceberg (the default), iceberg-upsert, delta, delta-upsert, or all. EXECUTORS=1: on two workers, whose
# executors are killed, too.
export-kills: $(ALL)
	@EXPORT_EXAMPLE=1 $(BIN)/python -m pytest -q e2e/test_examples.py e2e/test_exports.py -k "10-export or 11-export or exports"
	@$(BIN)/python -m tests.export_kills $(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(TABLE),--table $(TABLE)) $(if $(EXECUTORS),--executors)

# A day of a continuous export with maintenance: a commit for each minute, in compressed time. HOURS: of the day (24). FORMAT: iceberg (the default) or delta.
.PHONY: export-day
export-day: $(ALL) $(SPARK)
	@$(BIN)/python -m tests.export_day $(if $(HOURS),--hours $(HOURS)) $(if $(FORMAT),--format $(FORMAT))

# Compares Spark and an export to Iceberg with confluent-kafka while workers and brokers are killed and tiering is switched.
# RECORDS: approximate number (5000000). TIER=s3: on MinIO. ONLY: scenarios whose names contain this.
pipeline-proof: $(ALL) $(SPARK)
	@$(BIN)/python -m tests.pipeline_proof $(if $(RECORDS),--records $(RECORDS)) $(if $(TIER),--tier $(TIER)) $(if $(ONLY),--only '$(ONLY)')

# KILLS, PAUSES: number of times that the leader is killed (100) and paused (50). PARTITIONS: of the cluster (1000).
# SESSION: session timeout of its brokers in seconds (9).
bench-failover: $(ALL)
	@$(BIN)/python -m tests.benchmarks.failover $(if $(KILLS),--kills $(KILLS)) $(if $(PAUSES),--pauses $(PAUSES)) \
	  $(if $(PARTITIONS),--partitions $(PARTITIONS)) $(if $(SESSION),--session-s $(SESSION))

# RESTARTS: number of times that the leader is restarted (50).
bench-restarts: $(ALL)
	@$(BIN)/python -m tests.benchmarks.restarts $(if $(RESTARTS),--restarts $(RESTARTS))

# LAG: maximum lag in seconds (10). PROBES: of each topic (1000). RATE: MB/s under load (10). TIER=s3: on MinIO.
.PHONY: bench-tier-lag
bench-tier-lag: $(ALL)
	@$(BIN)/python -m tests.benchmarks.tier_lag $(if $(LAG),--lag-s $(LAG)) $(if $(PROBES),--probes $(PROBES)) \
	  $(if $(RATE),--rate $(RATE)) $(if $(TIER),--tier $(TIER))

# TOPICS: number applied at once (1000). PROFILE=1: profile of the operator's main thread. LIMITS=1: the operator runs in a cgroup
# with the limits of the chart (root); CPUS: its limit of cores, 0 for the request of the chart.
bench-operator: $(ALL)
	@$(BIN)/python -W ignore -m tests.benchmarks.operator $(if $(TOPICS),--topics $(TOPICS)) $(if $(PROFILE),--profile) \
	  $(if $(LIMITS),--limits) $(if $(CPUS),--cpus $(CPUS))

# LIVES: number of Topics that are created and deleted (10000) while the operator's memory is measured.
bench-lives: $(ALL)
	@$(BIN)/python -W ignore -m tests.benchmarks.topic_churn $(if $(LIVES),--lives $(LIVES))

# Many topics in one Export: each in its table, whatever happens to the others. TOPICS: at the start (200). LATER: that appear meanwhile (50).
export-many: $(ALL) $(SPARK)
	@$(BIN)/python -W ignore -m tests.benchmarks.export_many $(if $(TOPICS),--topics $(TOPICS)) $(if $(LATER),--later $(LATER))

# Rows per CPU-second on Spark, compared with its own Kafka source. ONLY='100 bytes, lz4': some loads; MEGABYTES: of each (200).
bench-pipeline: $(ALL) $(SPARK)
	@$(BIN)/python -m tests.benchmarks.pipeline $(if $(ONLY),--only '$(ONLY)') $(if $(MEGABYTES),--megabytes $(MEGABYTES))

# Work of each executor when one and when two workers of a standalone Spark cluster read a topic.
bench-executors: $(ALL) $(SPARK)
	@$(BIN)/python -m tests.benchmarks.executors $(if $(MEGABYTES),--megabytes $(MEGABYTES))

bench-scale: $(ALL)
	@$(BIN)/python -W ignore -m tests.benchmarks.scale

# sdist and wheel in dist/, each installed and started in an environment of its own.
release: $(ALL)
	@$(BIN)/python -m tools.release dist

# The resource definitions, and the copies that the chart installs.
crds: $(ALL)
	@$(BIN)/python -m tidemark_operator.resources.crdgen crds
	@$(BIN)/python -m tools.chart_files charts/tidemark-base/files

# Health checks and actions for Argo CD, from the scripts in argocd/.
argocd: $(ALL)
	@$(BIN)/python -m tools.argocd_files argocd/argocd-cm.yaml

# Argo CD on a local cluster: built once (7 minutes of one core); needs git and a redis-server.
e2e-argocd: $(ALL)
	@$(BIN)/python -m tests.argocd

# The generated pages of docs/, and the chart's dashboards.
pages: $(ALL)
	@$(BIN)/python -m tidemark_operator.pages docs/reference
	@$(BIN)/python -m tidemark.configuration.page docs/reference/configuration.md
	@$(BIN)/python -m tidemark.metrics.page docs/reference/metrics.md
	@$(BIN)/python -m tidemark.metrics.dashboards charts/tidemark/files/dashboards
	@$(BIN)/python -m tidemark_broker.api.serving.reference_page docs/reference/protocol.md
	@$(BIN)/python -m tidemark_cli.reference_page docs/reference/cli.md
	@$(BIN)/python -m tools.traceability docs/traceability.md
	@$(BIN)/python -m tools.top_picture docs/images/top.svg
	@$(BIN)/python -m tests.benchmarks.page docs/benchmarks

# The environment of the site: neither Spark nor the project's packages.
$(DOCS)/.packages: requirements-docs.txt
	@echo "installing the packages of the site in $(DOCS) (about 140 MB on disk, once)"
	@$(PYTHON) -m venv $(DOCS)
	@$(DOCS)/bin/pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements-docs.txt
	@touch $@

# Mermaid draws the diagrams in the reader's browser, and iframe-worker searches where a browser starts no worker. The theme
# would load both from another host. npm compares them with the hashes of the lock file.
$(THEME)/.scripts: requirements/docs/package.json requirements/docs/package-lock.json
	@command -v npm > /dev/null || { echo "the site needs npm (Node.js), which fetches the scripts of its diagrams and its search"; exit 1; }
	@mkdir -p build/docs-scripts $(THEME)/assets/javascripts
	@cp $^ build/docs-scripts
	@npm ci --prefix build/docs-scripts --silent --no-audit --no-fund --ignore-scripts
	@cp build/docs-scripts/node_modules/@mermaid-js/tiny/dist/mermaid.tiny.js $(THEME)/assets/javascripts/mermaid.tiny.js
	@cp build/docs-scripts/node_modules/@mermaid-js/tiny/LICENSE $(THEME)/assets/javascripts/mermaid.LICENSE
	@cp build/docs-scripts/node_modules/iframe-worker/shim/index.js $(THEME)/assets/javascripts/iframe-worker.js
	@cp build/docs-scripts/node_modules/iframe-worker/LICENSE $(THEME)/assets/javascripts/iframe-worker.LICENSE
	@touch $@

# docs/ as a site in build/site, which also works from a disk without a network. TIDEMARK_REPOSITORY, the address of the
# repository, adds a link to each page that opens its source. TIDEMARK_EDIT_URI: the path after it.
site docs: export TIDEMARK_EDIT_URI ?= $(if $(TIDEMARK_REPOSITORY),edit/main/docs)
site: $(DOCS)/.packages $(THEME)/.scripts
	@$(DOCS)/bin/zensical build --strict --config-file mkdocs.yml
	@$(DOCS)/bin/python -m tools.site_resources build/site
	@echo "file://$(CURDIR)/build/site/index.html"

# The same, served at ADDRESS and renewed with each change of a page, until Ctrl-C.
docs: site
	@$(DOCS)/bin/zensical serve --config-file mkdocs.yml --dev-addr $(ADDRESS)

# Pinned packages with their licences and known vulnerabilities; writes build/sbom.json.
$(VENV)/.sbom: $(ALL) requirements-sbom.txt
	@$(PIP) --no-deps --require-hashes -r requirements-sbom.txt
	@touch $@

sbom: $(VENV)/.sbom
	@$(BIN)/python -m tools.sbom

# Update requirements.txt from pyproject.toml, then its subsets, and the lists of `docs` and `sbom`: hashes, no addresses.
COMPILE := $(BIN)/pip-compile --quiet --generate-hashes --strip-extras --allow-unsafe --no-emit-index-url \
  --no-emit-trusted-host --no-emit-find-links --no-header --no-annotate
pins: $(ALL)
	@$(BIN)/python -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11) and "make pins needs Python 3.11, the oldest supported one: a newer one leaves out packages that only 3.11 needs. Use: make pins PYTHON=python3.11 VENV=.venv-3.11")'
	@$(COMPILE) --all-extras --output-file requirements.txt pyproject.toml
	@$(MAKE) --no-print-directory $(ALL)
	@$(BIN)/python -m tools.requirement_sets
	@$(COMPILE) --constraint requirements.txt --output-file requirements-docs.txt requirements-docs.in
	@$(COMPILE) --constraint requirements.txt --output-file requirements-sbom.txt requirements-sbom.in
