# All targets: `make help`. Each target first sets up what it needs in .venv; the second run starts at once.
# Needs git, make, Python >= 3.11 and the package registry. ARGS is passed to the program of the target.

SHELL := /bin/sh
.DEFAULT_GOAL := help
.NOTPARALLEL:

PY := .venv/bin/python
export ARGS ?=
unexport PYTHONDONTWRITEBYTECODE # so that tests and their processes compile each module once
WORKERS ?= 4 # twice the processors of a small machine: tests often wait for servers, processes, threads and clocks
SEEDS ?= 10000
BENCHMARKS ?= store dispatch wheel purgatory apscheduler celery kafka

# A layer without tests is a failure, unless ARGS has selected tests: then they may all be in the other layer.
# The folders that need Java or a browser are left out, because each worker takes a second to load them.
pytest = $(PY) -m pytest --ignore=tests/browser --ignore=tests/kafka --ignore=tests/spark $(1) $(ARGS) || { code=$$?; [ $$code -eq 5 ] && [ -n "$$ARGS" ]; }

.PHONY: help demo test test-unit test-real proofs spec simulate browser-test screenshots rabbit-test kafka-test test-celery test-oldest spark-test spark-kafka-test test-pythons dist docs check lint types mypy pyright imports built-wheel bench bench-history bench-compare clean distclean deploy-check venv-demo venv-test venv-browser venv-spark venv-docs venv-dev

help: ## show this
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' Makefile
	@printf '\n  ARGS="..." is passed on: make demo ARGS=--json, make test ARGS="-k wheel", make bench ARGS=--quick\n  INPUT=events.jsonl gives the demo your own records, one JSON object a line.\n'

demo: venv-demo ## see it work: an embedded server, failing messages, retries on the millisecond
	@.venv/bin/wheel-sched demo $(if $(INPUT),--input $(INPUT)) $(ARGS)

test: test-unit test-real ## every test: the unit layer, then real servers and real processes

test-unit: venv-test ## the unit layer alone: no server
	@printf '==> unit layer\n'
	@$(call pytest,-m "not real and not slow and not proof and not built and not spark and not kafka" -n $(WORKERS) --dist worksteal)

test-real: venv-test ## the real-server layer alone: embedded servers, real kills
	@printf '==> real-server layer\n'
	@$(call pytest,-m "(real or slow) and not proof and not built and not rabbit and not spark and not kafka" -n $(WORKERS) --dist worksteal)

proofs: venv-test ## the long proofs: processes killed, servers lost, many workers side by side
	@printf '==> proofs\n'
	@$(call pytest,-m "proof and not built and not rabbit and not spark and not kafka" -n $(WORKERS) --dist worksteal)

spec: venv-test ## the claim protocol of docs/spec: visit every state, and break each safeguard; ARGS=--tla: the TLA+ modules too (cargo)
	@$(PY) -m tests.spec $(ARGS)

simulate: venv-test ## random histories of whole systems in virtual time: SEEDS=10000 of them, ARGS=--json
	@$(PY) -m wheel_sched.simulation --seeds $(SEEDS) $(ARGS)

browser-test: venv-browser ## the dashboard and the policy simulator in a real browser: needs Debian's chromium
	@printf '==> browser layer\n'
	@command -v chromium >/dev/null || { printf 'error: the browser layer needs Chromium: apt-get install chromium; nothing was run\n' >&2; exit 1; }
	@$(PY) -m pytest -m browser tests/browser -n 2 $(ARGS)

screenshots: venv-browser ## the pictures of the dashboard in docs/images, from the data of the browser layer
	@$(PY) -m tests.browser.screenshots $(ARGS)

rabbit-test: venv-test ## Celery over RabbitMQ: needs rabbitmq-server, starts a private node
	@printf '==> RabbitMQ layer\n'
	@$(PY) -m pytest -m rabbit tests/integrations/celery $(ARGS)

test-pythons: venv-test ## tests/wheel on each installed Python from 3.11 on, both cores
	@.ci/pythons

kafka-test: venv-test ## the retry service over a real Kafka broker: needs Java 17 and Maven, fetches 46 jars once
	@printf '==> Kafka\n'
	@java -version >/dev/null 2>&1 || { printf 'error: Kafka needs Java 17: apt-get install openjdk-17-jre-headless; nothing was run\n' >&2; exit 1; }
	@$(PY) -c 'from tests.servers.kafka import kafka_classpath; kafka_classpath()' # once, before the brokers start
	@$(PY) -m pytest -m kafka tests/kafka tests/packaging/test_house.py -n $(WORKERS) --dist worksteal $(ARGS)

test-celery: venv-test ## Celery 5.5 and 5.6; all other tests run on the newest release
	@.ci/celery-versions

test-oldest: venv-test ## each extra but Spark on the oldest releases that it accepts
	@.ci/oldest

spark-test: venv-spark ## the jobs on Spark: needs Java 17 and half a gigabyte of packages
	@printf '==> Spark\n'
	@java -version >/dev/null 2>&1 || [ -n "$$JAVA_HOME" ] || { printf 'error: Spark needs Java 17: apt-get install openjdk-17-jre-headless (macOS: brew install openjdk@17), or set JAVA_HOME; nothing was run\n' >&2; exit 1; }
	@$(PY) -m pytest -m "spark and not kafka" tests/spark tests/packaging/test_extras.py -n 2 --dist loadfile $(ARGS) # one Spark session per worker

spark-kafka-test: venv-spark ## Spark with a real Kafka broker: needs Java 17 and Maven, as kafka-test
	@printf '==> Spark and Kafka\n'
	@java -version >/dev/null 2>&1 || { printf 'error: Spark and Kafka need Java 17: apt-get install openjdk-17-jre-headless; nothing was run\n' >&2; exit 1; }
	@$(PY) -m pytest -m "spark and kafka" tests/spark/kafka -n 2 --dist loadfile $(ARGS)

deploy-check: venv-test ## the files in deploy/: promtool, hadolint, the size of the image; helm and systemd if they are installed
	@printf '==> deploy\n'
	@deploy/check

check: lint types imports built-wheel ## linter, types, direction of imports, the built wheel
	@printf '==> all checks passed\n'

lint: venv-dev ## ruff: rules and format
	@printf '==> ruff\n'
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .

types: mypy pyright ## mypy strict and pyright

mypy: venv-dev
	@printf '==> mypy\n'
	@$(PY) -m mypy

pyright: venv-dev
	@printf '==> pyright\n'
	@PYRIGHT_PYTHON_IGNORE_WARNINGS=1 $(PY) -m pyright --pythonpath $(PY)

imports: venv-dev ## import contracts: which package may import which
	@printf '==> import contracts\n'
	@$(PY) .venv/bin/lint-imports --no-logo

built-wheel: venv-dev ## build sdist and wheel, and test the wheel in an empty environment
	@printf '==> built wheel\n'
	@$(PY) -m pytest -m "built and not spark" tests/packaging $(ARGS)

dist: venv-dev ## the files of a release that this machine can build, in dist/
	@rm -rf dist
	@.ci/dist

docs: venv-docs ## the documentation site, in build/docs: start with build/docs/index.html
	@printf '==> docs\n'
	@rm -rf build/docs
	@$(PY) docs/site/prepare.py build/docs-source
	@$(PY) -m sphinx -q -W -n --keep-going -E -d build/docs-trees -b html build/docs-source build/docs
	@$(PY) docs/site/check.py build/docs

bench: venv-dev ## all benchmarks, one after another
	@for name in $(BENCHMARKS); do printf '==> benchmark: %s\n' $$name >&2; $(PY) -m benchmarks $$name $(ARGS) || exit; done

bench-history: venv-dev ## adds the ratios of a quick run to benchmarks/history.jsonl, with which CI compares its own
	@$(PY) -m benchmarks wheel --quick --history benchmarks/history.jsonl

bench-compare: venv-dev ## how the figures of this tree differ from those of BASE=<commit>: BENCHMARK=store, ARGS="--rounds 5 --json --check"
	@[ -n "$(BASE)" ] || { printf 'error: expected a commit: make bench-compare BASE=HEAD~1; nothing was run\n' >&2; exit 2; }
	@$(PY) -m benchmarks.compare $(BASE) --benchmark $(or $(BENCHMARK),store) $(ARGS)

clean: ## remove caches and build results
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .wheel-sched
	find . -path ./.venv -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean ## clean, and remove .venv
	rm -rf .venv

venv-demo venv-test venv-browser venv-spark venv-docs venv-dev: venv-%:
	@.ci/venv $*
