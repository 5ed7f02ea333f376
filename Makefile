# `make help` lists what there is to do. Everything runs in .venv, made from the hashed lock files.
.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.setup-done
JOBS ?= 2
STEPS ?= 3
REFERENCE ?= ../shared/reference
# How many xdist workers a step of tests takes: alone all of them, beside other steps one process.
WORKERS ?= $(JOBS)
PYTEST := $(BIN)/pytest
STEP := bash .ci/step
# STEPS steps at a time, one more than cores since servers and browsers mostly wait; each one's output comes whole, at its
# end. The first that fails ends the run. What uses the kernels waits until the tests of the kernels have left them in the
# cache.
TOGETHER = $(MAKE) --no-print-directory -j $(STEPS) --output-sync=target WORKERS=0 FIRST=test-kernels
FIRST ?=
KERNELS := tests/unit/replay/kernels
TESTS := test-kernels test-kernels-checked test-int test-replay test-property test-browser test-unit \
	test-kernels-uncompiled test-contract test-docs test-package
LOCKS := requirements.lock requirements-dev.lock requirements-build.lock
COMPILE := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate
export UV_HTTP_TIMEOUT ?= 180
export PIP_DISABLE_PIP_VERSION_CHECK ?= 1
# Bytecode of all that is imported is kept: without it a worker compiles for seconds whenever it starts.
unexport PYTHONDONTWRITEBYTECODE
export PYTHONPYCACHEPREFIX := $(abspath $(VENV))/bytecode

.PHONY: help setup fmt check test lint types test-kernels test-kernels-checked test-kernels-uncompiled test-replay test-unit \
	test-property test-int test-contract test-browser test-package test-docs bench lock serve demo openapi accuracy chromium \
	clean

help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-24s %s\n", $$1, $$2}'

setup: $(STAMP) ## Make .venv from the lock files (again only when they change)

$(STAMP): requirements-dev.lock requirements-build.lock pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "make setup: no $(PYTHON) here. Install Python 3.11 or newer."; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "make setup: $(PYTHON) is $$($(PYTHON) -V 2>&1); Python 3.11 or newer is needed." \
	       "Say which one: make setup PYTHON=python3.11"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { \
	  rm -rf $(VENV); echo "make setup: $(PYTHON) cannot make environments. On Debian and Ubuntu: apt-get install python3-venv"; exit 1; }
	@if $(BIN)/python -m pip install --quiet --require-hashes --no-deps -r requirements-build.lock; then \
	  $(BIN)/uv pip sync --quiet --python $(BIN)/python --require-hashes requirements-dev.lock; \
	else \
	  echo "make setup: uv cannot be installed here; using pip, which takes some minutes"; \
	  $(BIN)/python -m pip install --quiet --require-hashes --no-deps -r requirements-dev.lock; \
	fi
	@$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --no-index --editable .
	@touch $@
	@echo "make setup: done, in $(VENV)"

fmt: setup ## Format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix-only .

check: setup chromium ## Run every check: style, types, who imports whom, and all tests
	@$(TOGETHER) test-kernels lint types $(TESTS)

test: setup chromium ## Run all tests, with real PostgreSQL and Redis (found or started)
	@$(TOGETHER) $(TESTS)

lint: setup ## Check format, lint rules and who imports whom
	@$(STEP) "format" $(BIN)/ruff format --check .
	@$(STEP) "lint" $(BIN)/ruff check .
	@$(STEP) "who imports whom" $(BIN)/lint-imports

types: setup ## Check types
	@$(STEP) "types" $(BIN)/mypy

test-kernels: setup ## Run the kernels' tests
	@$(STEP) "kernels" $(PYTEST) $(KERNELS) -n $(WORKERS)

test-kernels-checked: setup ## Run the kernels' tests with bounds checks: compiled, a kernel reads garbage out of range
	@NUMBA_BOUNDSCHECK=1 NUMBA_CACHE_DIR=$(abspath $(VENV))/numba-boundscheck \
	  $(STEP) "kernels, bounds checked" $(PYTEST) $(KERNELS) -n $(WORKERS)

# Hashes wrap around on purpose, which only numpy's scalars remark on.
test-kernels-uncompiled: setup ## Run the kernels' tests as plain Python
	@NUMBA_DISABLE_JIT=1 $(STEP) "kernels, not compiled" \
	  $(PYTEST) $(KERNELS) -n $(WORKERS) -W "ignore:overflow encountered in scalar:RuntimeWarning"

test-replay: setup $(FIRST) ## Run the other unit tests of replay
	@$(STEP) "replay" $(PYTEST) tests/unit/replay --ignore $(KERNELS) -n $(WORKERS)

test-unit: setup $(FIRST) ## Run the unit tests of all but replay
	@$(STEP) "unit tests" $(PYTEST) tests/unit --ignore tests/unit/replay -n $(WORKERS)

test-property: setup $(FIRST) ## Run the tests of laws that hold for any input
	@$(STEP) "property tests" $(PYTEST) tests/property -n $(WORKERS)

test-int: setup $(FIRST) ## Run the tests against PostgreSQL, Redis, SQLite and real workers, for which they mostly wait
	@$(STEP) "integration tests" $(PYTEST) tests/integration -n 3

test-contract: setup $(FIRST) ## Run the tests of the API against its description
	@$(STEP) "contract tests" $(PYTEST) tests/contract -n $(WORKERS)

test-browser: setup chromium $(FIRST) ## Run the tests in the system's Chromium
	@$(STEP) "browser tests" $(PYTEST) tests/browser

test-package: setup $(FIRST) ## Run the tests of the wheel, the image and the compose files
	@$(STEP) "package tests" $(PYTEST) tests/package

test-docs: setup $(FIRST) ## Run the tests of the documents
	@$(STEP) "documentation tests" $(PYTEST) tests/docs

bench: setup ## Measure the speed of the engine, of reading traces and of plans
	$(BIN)/python bench/engine.py
	$(BIN)/python bench/ingest.py
	$(BIN)/python bench/plan.py

lock: setup ## Remake all lock files together (make lock LOCK_FLAGS=--upgrade for newer versions)
	$(COMPILE) $(LOCK_FLAGS) --group dev pyproject.toml --output-file requirements-dev.lock
	$(COMPILE) $(LOCK_FLAGS) --constraint requirements-dev.lock pyproject.toml --output-file requirements.lock
	printf "uv\nhatchling\n" | $(COMPILE) $(LOCK_FLAGS) --constraint requirements-dev.lock - --output-file requirements-build.lock
	@! grep -n '://' $(LOCKS) || { echo "make lock: a lock file names an address"; exit 1; }

serve: setup ## Start the service here: SQLite, one worker, http on 127.0.0.1
	$(BIN)/capreplay serve

demo: setup ## Upload a trace, plan, print the recommendations (TRACE=FILE for your own, ARGS="--map arrival=ts ..." names its columns, ARGS=--keep to browse)
	$(BIN)/python examples/demo.py $(TRACE) $(ARGS)

openapi: setup ## Write docs/openapi.json from the code
	$(BIN)/python -m api.openapi docs/openapi.json

accuracy: setup ## Replay the measured runs in REFERENCE and write docs/accuracy.md and docs/benchmarks.md
	$(BIN)/capreplay accuracy $(REFERENCE)/blis --markdown > docs/accuracy.md.new
	@mv docs/accuracy.md.new docs/accuracy.md
	$(BIN)/capreplay score-benchmarks $(REFERENCE)/benchmarks.csv --markdown > docs/benchmarks.md.new
	@mv docs/benchmarks.md.new docs/benchmarks.md

chromium:
	@if command -v chromium chromium-browser google-chrome google-chrome-stable >/dev/null || [ -n "$${CAPREPLAY_TEST_CHROMIUM:-}" ]; then \
	  :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "make chromium: installing the system's chromium for the browser tests"; \
	  apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install --yes --no-install-recommends chromium >/dev/null; \
	else \
	  echo "The browser tests need Chromium: install your system's package (Debian, Ubuntu: sudo apt-get install chromium)," \
	       "or set CAPREPLAY_TEST_CHROMIUM to the program's path."; exit 1; \
	fi

clean: ## Remove the environment, caches and build output (never your data)
	rm -rf $(VENV) dist test-output .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
