# Two targets do everything: `make quickstart`, on any Linux with Python and a C compiler, and
# `make test`, on a fresh Debian 12.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Made when .venv has what campaigns need, and when it has what tests need too.
BASE := $(VENV)/.base
DEV := $(VENV)/.dev
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.DEFAULT_GOAL := help
.PHONY: help quickstart kernel-wheel setup test fast fuzz soak check format reference gallery engines clean built-in-trees

help:
	@echo "make quickstart  a first campaign, and its report; needs Python with venv and a C compiler, and no root"
	@echo "make quickstart KERNEL_WHEEL=FILE.whl  the same, and the kernel that make kernel-wheel packed, for campaigns with TCP"
	@echo "make kernel-wheel  build the virtual-time kernel, and pack it for other machines, into dist/"
	@echo "make test        formatter, linter, types, import contracts, every test"
	@echo "make fast        the same with tests that need no more than Python, in about a minute"
	@echo "make fuzz INPUTS=100000  gives each reader of files and streams so many made-up inputs"
	@echo "make soak HOURS=1  runs drawn campaigns, kills what runs at random moments, and says what was lost or left"
	@echo "make setup       all the rest: system packages to build the kernel and for tests, of which none is started"
	@echo "make format      format the code"
	@echo "make reference   write the docs' reference pages and the picture of the packages anew, from the code"
	@echo "make gallery     run the packaged comparisons, and show their reports in docs/generated/gallery.md, in ten minutes"
	@echo "make engines     run golden and papers' RoCE campaigns in both engines, and compare them in docs/generated/engines.md, in an hour"
	@echo "make built-in-trees  write the congestion control rlcc anew, of tuners/pretrained/rl-cc-trees.json"
	@echo "make clean       remove $(VENV) and caches; runs/ and the built kernel stay"

quickstart: $(BASE)
	$(if $(KERNEL_WHEEL),$(PIP) --force-reinstall $(KERNEL_WHEEL))
	$(BIN)/closloop run examples/quickstart.yml
	@echo "next: open runs/quickstart/report.html, and read docs/first-hour.md"

kernel-wheel: $(BASE)
	./scripts/system-packages.sh kernel
	$(PIP) wheel
	$(BIN)/closloop kernel build
	$(BIN)/closloop kernel wheel

setup: $(DEV)

$(BASE): pyproject.toml constraints.txt scripts/system-packages.sh
	@PYTHON="$(PYTHON)" ./scripts/system-packages.sh quickstart
	$(PYTHON) -m venv $(VENV)
	@echo "installing closloop and the libraries that it runs with into $(VENV)"
	$(PIP) -e .
	@# a guest reads bytecode and writes none: without it each trial would compile what only guests import
	$(BIN)/python -m compileall -q closloop collectors inventory orchestration traffic tuners
	@touch $(BASE)

$(DEV): pyproject.toml constraints.txt scripts/system-packages.sh
	./scripts/system-packages.sh tests
	@$(MAKE) --no-print-directory $(BASE)
	@echo "installing what tests need into $(VENV): torch, ns-3, Ansible and more, which takes minutes"
	$(PIP) -e '.[dev]'
	@touch $(DEV)

# Compiled tests are kept, whatever the environment says: to compile them anew takes each of pytest's
# processes 8 seconds.
test fast: export PYTHONDONTWRITEBYTECODE :=

# Files begin in the order of tests/conftest.py, the longest first; xdist would sort them by their number of tests.
test: check
	$(BIN)/closloop kernel build
	$(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder

# What needs no more than Python and no second: no kernel, simulator, server, browser or root.
QUICK = not (kernel or slow or ns3 or ssh or redis or influx or browser or root or containers or yang or clab or cluster or flux or grafana)

fast: check
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "$(QUICK)"

INPUTS ?= 10000

fuzz: setup
	$(PIP) atheris
	$(BIN)/python tests/fuzz/fuzz.py --inputs $(INPUTS)

HOURS ?= 1

soak: setup
	$(BIN)/python tests/soak/soak.py --hours $(HOURS)

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

reference: setup
	$(BIN)/closloop signals --markdown docs/generated/signals.md
	$(BIN)/python scripts/reference.py
	$(BIN)/python scripts/architecture.py

gallery: setup
	$(BIN)/python scripts/gallery.py

engines: setup
	$(BIN)/python scripts/engines.py

DATA_PATH := orchestration/datapath

built-in-trees:
	@made=$$(mktemp -d) && $(BIN)/closloop compile tuners/pretrained/rl-cc-trees.json -o $$made/policy_rlcc.c \
		&& cp $$made/policy_rlcc.c $(DATA_PATH)/ && rm -r $$made

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
