# The commands of the README. Each makes the virtual environment itself when it is missing.
# PYTHON: the interpreter to make it with (3.11 or newer). TIER: directory or s3, for `demo` and `up`; ENGINE: tidemark or kafka.
PYTHON ?= python3
VENV   ?= .venv
TIER   ?= directory
ENGINE ?= tidemark
BIN    := $(VENV)/bin
# What is installed, by need: the demo and `up`; Spark; pictures; everything, for tests and lint.
RUN    := $(VENV)/.run
SPARK  := $(VENV)/.spark
PLOTS  := $(VENV)/.plots
ALL    := $(VENV)/.all
# What is installed stands in lists that name everything, with hashes: pip is to look for nothing besides (it would take a
# newer release than the pinned one where an extra is asked for, and refuse it for want of a hash).
PIP    := $(BIN)/pip install --quiet --disable-pip-version-check

.PHONY: kafka-kills demo up spark plots test test-long retest e2e e2e-quick e2e-argocd coverage lint bench bench-encryption bench-failover bench-restarts bench-operator bench-lives bench-pipeline bench-scale bench-install reproducible \
  simulate fuzz histories full-disk export-kills pipeline-proof release sbom pins crds argocd pages docs conformance compatibility
.DEFAULT_GOAL := demo

$(RUN): requirements/run.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Tidemark needs Python 3.11 or newer: make PYTHON=python3.11")'
	@echo "making the virtual environment in $(VENV) (about 300 MB on disk, once)"
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

$(ALL): requirements.txt $(SPARK)
	@echo "installing what tests and lint need (about 250 MB on disk, once)"
	@$(PIP) --no-deps --require-hashes -r requirements.txt
	@touch $@

demo: $(RUN)
	@$(BIN)/tidemark demo --tier $(TIER) --engine $(ENGINE)

up: $(RUN)
	@$(BIN)/tidemark up --tier $(TIER) --engine $(ENGINE)

# What `tidemark spark` needs; the demo installs it itself, while it waits for other things.
spark: $(SPARK)

# What draws the pictures of examples/12-delays-by-hour and of examples/notebooks (about 100 MB on disk).
plots: $(PLOTS)

# A run starts hundreds of processes: what they import is compiled once, whatever the environment says.
test test-long retest coverage: export PYTHONDONTWRITEBYTECODE :=
# FAST=1 leaves out the tests that are marked slow, too. JOBS: how many processes; half of the time a test
# waits for something, so two for each core, and no more than eight.
JOBS ?= $(shell n=$$(nproc 2>/dev/null || getconf _NPROCESSORS_ONLN); echo $$((n < 4 ? 2 * n : 8)))
test: $(ALL)
	@$(BIN)/python -m tests.programs
	@$(BIN)/python -m pytest --numprocesses $(JOBS) --dist loadgroup -m "not long$(if $(FAST), and not slow)"

# What `make test` leaves out: whole chapters of which it runs the shortest test.
test-long: $(ALL)
	@$(BIN)/python -m tests.programs
	@$(BIN)/python -m pytest --numprocesses $(JOBS) --dist loadgroup -m long

# Images, charts and pods on a real kubelet: with kind and Docker, else as root on Debian on a node that the run makes.
# PROVIDER: kind or node. CHAPTERS: some of them (CHAPTERS=? names them). Not a part of `test`: it needs rights that tests have no business with.
e2e: $(ALL)
	@$(BIN)/python -m e2e.pods $(PROVIDER) $(CHAPTERS)

# The part of it that CI runs, in minutes; a machine that runs no pods says why, and is no failure.
e2e-quick: $(ALL)
	@$(BIN)/python -m e2e.pods.quick

# How soon brokers in pods serve, placeholders are filled and another operator leads, and how large the images are.
bench-install: $(ALL)
	@$(BIN)/python -m e2e.pods $(PROVIDER) speed

# The images of operator and broker, each built twice from nothing: they are the same to the last bit, or what differs is named.
reproducible: $(ALL)
	@$(BIN)/python -m e2e.pods.reproducible

# What failed in the last `make test`, once more, one test after the other, until one fails again.
retest: $(ALL)
	@$(BIN)/python -m tests.retest

# The same tests with the lines and branches that they reach, child processes included; slower.
coverage: $(ALL)
	@$(BIN)/python -m tests.programs
	@$(BIN)/python -m pytest --numprocesses $(JOBS) --dist loadgroup --cov --cov-report=term $(if $(FAST),-m "not slow and not long")

lint: $(ALL)
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python -m tests.dead_code
	@$(BIN)/python -m tests.language --check
	@$(BIN)/python -m tidemark_operator.resources.crdgen --check crds
	@$(BIN)/python -m tests.chart_files --check charts/tidemark-base/files
	@$(BIN)/python -m tests.argocd_files --check argocd/argocd-cm.yaml
	@$(BIN)/python -m tidemark_operator.pages --check docs/reference
	@$(BIN)/python -m tidemark.configuration.page --check docs/reference/configuration.md
	@$(BIN)/python -m tidemark.metrics.page --check docs/reference/metrics.md
	@$(BIN)/python -m tidemark.metrics.dashboards --check charts/tidemark/files/dashboards
	@$(BIN)/python -m tests.suites.page --check docs/reference/compatibility.md
	@$(BIN)/python -m tidemark_broker.api.reference_page --check docs/reference/protocol.md
	@$(BIN)/python -m tidemark_cli.reference_page --check docs/reference/cli.md
	@$(BIN)/python -m tests.traceability --check docs/traceability.md
	@$(BIN)/python -m tests.top_picture --check docs/images/top.svg

# Other people's test suites, and the same requests to ours and to Apache Kafka (SUITE=oracle). SUITE: one of them; ONLY: tests
# whose names have this; SIDE=kafka: Apache Kafka itself.
conformance: $(ALL)
	$(if $(filter oracle,$(SUITE)),,@$(BIN)/python -m tests.suites $(SUITE) $(if $(ONLY),--only '$(ONLY)') $(if $(filter kafka,$(SIDE)),--kafka))
	$(if $(filter-out oracle,$(SUITE)),,@$(BIN)/python -m tests.conformance.oracle $(if $(ONLY),--only '$(ONLY)'))

# docs/reference/compatibility.md, from what the runs of whole suites have left.
compatibility: $(ALL)
	@$(BIN)/python -m tests.suites.page docs/reference/compatibility.md

# Beside Apache Kafka, in turn. ONLY: measures whose names have this, such as ONLY='RF 3'.
bench: $(ALL)
	@$(BIN)/python -m tests.benchmarks.brokers $(if $(ONLY),--only '$(ONLY)')

# Clients and replication in clear and in TLS, beside Apache Kafka.
bench-encryption: $(ALL)
	@$(BIN)/python -m tests.benchmarks.encryption

# SEEDS=5000: so many runs of the simulated cluster, of all kinds in turn. SEED=17: one of them again, with its whole story.
# KIND: moves, backups, restores, down (etcd is put back while a broker is down), torn (the same, and another broker has lost its tail), heads, or tables (a topic and its table).
SEEDS ?= 1000
simulate: $(ALL)
	@$(BIN)/python -m tests.simulation $(if $(SEED),--seed $(SEED),--seeds $(SEEDS)) $(if $(KIND),--$(KIND))
	@$(if $(KIND),,$(BIN)/python -m tests.simulation --tables $(if $(SEED),--seed $(SEED),--seeds $(SEEDS)))

# SECONDS: how long bytes are made up that nobody should send (60).
fuzz: $(ALL)
	@$(BIN)/python -m tests.fuzz $(if $(SECONDS),--seconds $(SECONDS))

# MINUTES: how long stock clients work on three brokers that are disturbed, seed after seed (5). SEED: one round again.
# KAFKA=1: on Apache Kafka's brokers.
histories: $(ALL)
	@$(BIN)/python -m tests.histories $(if $(MINUTES),--minutes $(MINUTES)) $(if $(SEED),--seed $(SEED)) $(if $(KAFKA),--kafka)

# SEEDS: how often the disk of one of three brokers gets full under load and has room again (20). SEED: one of them again.
# Mounts small file systems, so it needs root; about a minute a seed.
full-disk: $(ALL)
	@$(BIN)/python -m tests.full_disk $(if $(SEED),--first $(SEED) --seeds 1,$(if $(filter command line,$(origin SEEDS)),--seeds $(SEEDS)))

# The operator, killed at every call by which it changes something in Kubernetes or in Apache Kafka (needs Java and Maven).
kafka-kills: $(ALL)
	@KAFKA_KILLS=1 $(BIN)/python -m pytest -q -s --timeout 3600 tests/integration/kafka_engine/test_killed_at_every_call.py

# The example of an export to Iceberg; one whose processes are killed at each step of a commit, and one that another job overtakes; ROUNDS: so many times (1).
# TABLE: iceberg (which is what there is without it), iceberg-upsert, delta, delta-upsert, or all.
export-kills: $(ALL)
	@EXPORT_EXAMPLE=1 $(BIN)/python -m pytest -q e2e/test_examples.py e2e/test_exports.py -k "10-export or 11-export or exports"
	@$(BIN)/python -m tests.export_kills $(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(TABLE),--table $(TABLE))

# Spark, and an export to Iceberg, beside confluent-kafka while workers and brokers are killed and tiering is switched; RECORDS: about so many (5000000), TIER=s3: on MinIO, ONLY: scenarios.
pipeline-proof: $(ALL) $(SPARK)
	@$(BIN)/python -m tests.pipeline_proof $(if $(RECORDS),--records $(RECORDS)) $(if $(TIER),--tier $(TIER)) $(if $(ONLY),--only '$(ONLY)')

# KILLS: how often the leader is killed (100).
bench-failover: $(ALL)
	@$(BIN)/python -m tests.benchmarks.failover $(if $(KILLS),--kills $(KILLS))

# RESTARTS: how often the leader is restarted (50).
bench-restarts: $(ALL)
	@$(BIN)/python -m tests.benchmarks.restarts $(if $(RESTARTS),--restarts $(RESTARTS))

# TOPICS: how many are applied at once (1000). PROFILE=1: where the operator's main thread spends its time. LIMITS=1: the operator in
# a cgroup with the limits that the chart gives its pod (root); CPUS: with so many cores at most, 0 for what the pod requests.
bench-operator: $(ALL)
	@$(BIN)/python -W ignore -m tests.benchmarks.operator $(if $(TOPICS),--topics $(TOPICS)) $(if $(PROFILE),--profile) \
	  $(if $(LIMITS),--limits) $(if $(CPUS),--cpus $(CPUS))

# LIVES: how many Topics are made and deleted (10000), while the operator's memory is watched.
bench-lives: $(ALL)
	@$(BIN)/python -W ignore -m tests.benchmarks.topic_churn $(if $(LIVES),--lives $(LIVES))

# Rows of a CPU-second on Spark, beside its own Kafka source. ONLY='100 bytes, lz4': some of the loads; MEGABYTES: of each (200).
bench-pipeline: $(ALL) $(SPARK)
	@$(BIN)/python -m tests.benchmarks.pipeline $(if $(ONLY),--only '$(ONLY)') $(if $(MEGABYTES),--megabytes $(MEGABYTES))

bench-scale: $(ALL)
	@$(BIN)/python -W ignore -m tests.benchmarks.scale

# sdist and wheel in dist/, and each tried in an environment of its own.
release: $(ALL)
	@$(BIN)/python -m tests.release dist

# The resource definitions, and the copies that the chart installs.
crds: $(ALL)
	@$(BIN)/python -m tidemark_operator.resources.crdgen crds
	@$(BIN)/python -m tests.chart_files charts/tidemark-base/files

# What Argo CD is told of our kinds, from the scripts beside it.
argocd: $(ALL)
	@$(BIN)/python -m tests.argocd_files argocd/argocd-cm.yaml

# Argo CD itself on a cluster of ours: built once (7 minutes of one core); needs git and a redis-server.
e2e-argocd: $(ALL)
	@$(BIN)/python -m tests.argocd

# The pages of docs/ that are written from the code, and the chart's dashboards.
pages: $(ALL)
	@$(BIN)/python -m tidemark_operator.pages docs/reference
	@$(BIN)/python -m tidemark.configuration.page docs/reference/configuration.md
	@$(BIN)/python -m tidemark.metrics.page docs/reference/metrics.md
	@$(BIN)/python -m tidemark.metrics.dashboards charts/tidemark/files/dashboards
	@$(BIN)/python -m tidemark_broker.api.reference_page docs/reference/protocol.md
	@$(BIN)/python -m tidemark_cli.reference_page docs/reference/cli.md
	@$(BIN)/python -m tests.traceability docs/traceability.md
	@$(BIN)/python -m tests.top_picture docs/images/top.svg

# docs/ as a site in build/site. Its packages (some 100 MB) are only installed here.
$(VENV)/.docs: $(ALL) requirements-docs.txt
	@$(PIP) --no-deps --require-hashes -r requirements-docs.txt
	@touch $@

docs: $(VENV)/.docs
	@$(BIN)/zensical build --strict --config-file mkdocs.yml

# What is pinned, its licences and known vulnerabilities; the bill goes to build/sbom.json.
$(VENV)/.sbom: $(ALL) requirements-sbom.txt
	@$(PIP) --no-deps --require-hashes -r requirements-sbom.txt
	@touch $@

sbom: $(VENV)/.sbom
	@$(BIN)/python -m tests.sbom

# Renew requirements.txt from pyproject.toml, then the parts of it, and those of `docs` and `sbom`: hashes, no addresses.
COMPILE := $(BIN)/pip-compile --quiet --generate-hashes --strip-extras --allow-unsafe --no-emit-index-url \
  --no-emit-trusted-host --no-emit-find-links --no-header --no-annotate
pins: $(ALL)
	@$(COMPILE) --all-extras --output-file requirements.txt pyproject.toml
	@$(MAKE) --no-print-directory $(ALL)
	@$(BIN)/python -m tests.requirement_sets
	@$(COMPILE) --constraint requirements.txt --output-file requirements-docs.txt requirements-docs.in
	@$(COMPILE) --constraint requirements.txt --output-file requirements-sbom.txt requirements-sbom.in
