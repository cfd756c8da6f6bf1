# Two targets do everything on a fresh Debian 12: `make quickstart` and `make test`.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help quickstart setup test fast check format clean

help:
	@echo "make quickstart  system packages, $(VENV), the virtual-time kernel, the quickstart campaign"
	@echo "make test        formatter, linter, types, import contracts, every test"
	@echo "make fast        the same with the tests that take no kernel, in under a minute"
	@echo "make setup       system packages and $(VENV) only"
	@echo "make format      format the code"
	@echo "make clean       remove $(VENV) and caches; runs/ and the built kernel stay"

quickstart: setup
	$(BIN)/closloop kernel build
	$(BIN)/closloop run examples/quickstart.yml

setup: $(READY)

$(READY): pyproject.toml constraints.txt scripts/system-packages.sh
	./scripts/system-packages.sh
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $(READY)

test: check
	$(BIN)/python -m pytest -n 3 --dist loadfile

fast: check
	$(BIN)/python -m pytest -m "not kernel and not slow"

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
