# Everything runs in .venv, which `install` makes; nothing is installed outside of this folder.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PORT ?= 8000
DATABASES ?= sqlite postgresql
# Bytecode is written even where the environment says otherwise: each of the test's processes would else compile every
# test again, on each database.
PYTEST := env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest -n 4 --dist loadgroup
export PORT

.DEFAULT_GOAL := help
.PHONY: help install run demo test check bench bench-path bench-push bench-lock bench-delivery bench-snapshots bench-api bench-admin screenshots dashboard lock format

help: ## list every target
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit("Docora needs Python 3.11 or newer: make PYTHON=/path/to/python3" if sys.version_info < (3, 11) else 0)'
	@echo "Making a virtual environment in $(VENV)"
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.runtime: requirements.txt | $(BIN)/python
	@$(BIN)/python install.py requirements.txt
	@touch $@

$(VENV)/.dev: requirements-dev.txt $(VENV)/.runtime
	@$(BIN)/python install.py requirements-dev.txt
	@touch $@

install: $(VENV)/.dev ## make .venv with all that running, testing and checking need

run: $(VENV)/.runtime ## start everything on 127.0.0.1:PORT (8000); Ctrl-C stops it
	@$(BIN)/python manage.py up

demo: $(VENV)/.runtime ## the whole story in a terminal, by itself, in under a minute
	@$(BIN)/python manage.py demo

test: $(VENV)/.dev ## the whole test suite, on SQLite and on PostgreSQL
	@for database in $(DATABASES); do echo "On $$database:"; TEST_DATABASE=$$database $(PYTEST) || exit 1; done

check: $(VENV)/.dev ## lint, format, types, import direction, migrations, locked requirements and their known flaws
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/python -W ignore::RuntimeWarning manage.py makemigrations --check --dry-run
	@cp requirements.txt requirements-dev.txt $(VENV)/
	@$(COMPILE) pyproject.toml -o $(VENV)/requirements.txt
	@$(COMPILE) --group dev -c $(VENV)/requirements.txt -o $(VENV)/requirements-dev.txt
	@for file in requirements.txt requirements-dev.txt; do \
	  diff -u $$file $(VENV)/$$file || { echo "$$file does not follow pyproject.toml: run make lock"; exit 1; }; done
	@$(BIN)/python .ci/audit

bench: bench-path bench-push bench-lock bench-delivery bench-snapshots bench-api bench-admin ## every benchmark, each beside a named reference in the same run

bench-path: $(VENV)/.dev ## the whole path, from a commit to the last acknowledgement, beside bare git and a bare client (BENCH_PATH=--page writes docs/performance.md)
	@$(BIN)/python -m benchmarks.path $(BENCH_PATH)

bench-push: $(VENV)/.dev ## from a push hook to the first webhook: idle, beside busy workers, and 500 hooks within a second
	@$(BIN)/python -m benchmarks.push $(BENCH_PUSH)

bench-lock: $(VENV)/.dev ## the repository lock beside two other Redis locks
	@$(BIN)/python -m benchmarks.lock

bench-delivery: $(VENV)/.dev ## deliveries per second and time to sync, beside the raw HTTP client
	@$(BIN)/python -m benchmarks.delivery

bench-snapshots: $(VENV)/.dev ## what a snapshot costs beside bare git, also for 100,000 files and one of 500 MB
	@$(BIN)/python -m benchmarks.snapshots

bench-api: $(VENV)/.dev ## requests per second with 1 and with 10,000 apps
	@$(BIN)/python -m benchmarks.api

bench-admin: $(VENV)/.dev ## every page of the admin with a million delivered files, on SQLite and on PostgreSQL
	@$(BIN)/python -m benchmarks.admin

screenshots: $(VENV)/.dev ## pictures of every page of the admin into data/screenshots; needs an installed Chromium
	@$(BIN)/python -m tests.support.screenshots

dashboard: $(VENV)/.dev ## a picture of the Grafana dashboard from a real run into docs/screenshots; needs Chromium and Prometheus
	@$(BIN)/python -m tests.support.dashboard

format: $(VENV)/.dev ## rewrite the code in the house style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

COMPILE = $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate $(UPGRADE)

lock: $(VENV)/.dev ## compile the locked requirements from pyproject.toml (UPGRADE=--upgrade for newer versions)
	$(COMPILE) pyproject.toml -o requirements.txt
	$(COMPILE) --group dev -c requirements.txt -o requirements-dev.txt
