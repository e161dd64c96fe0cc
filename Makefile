# Everything that is done with a checkout. `make help` lists it; each target can be called again at any time.
SHELL := /bin/bash
PYTHON ?= python3
BIN := .venv/bin
# further arguments for up, demo, test and the like: make up ARGS='--port-offset 100'
ARGS ?=
# a service's name, for logs and restart: make logs S=deployer
S ?=
# how many runs of the demo `make faults` goes through, or models of each kind `make fuzz`
faults: SEEDS ?= 20
fuzz: SEEDS ?= 2000

.DEFAULT_GOAL := help
.PHONY: help setup environment protos lint format type test unit contract integration e2e conformance stubs pins \
	up down status logs restart demo faults fuzz clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# ---- environment ----
define need_python
@command -v $(PYTHON) >/dev/null || { echo "make: no $(PYTHON) on PATH; install Python 3.11 or newer\
 (Debian, Ubuntu: apt-get install python3 python3-venv)" >&2; exit 1; }
endef

setup: ## make .venv with everything for development, from the pins
	$(need_python)
	@$(PYTHON) requirements/environment.py dev

# what running the stack takes; contained in `setup`
environment:
	$(need_python)
	@$(PYTHON) requirements/environment.py stack

pins: setup ## resolve pyproject.toml into requirements/*.txt (ARGS=--upgrade: newest releases)
	@$(BIN)/python requirements/compile.py $(ARGS)

protos: setup ## generate the stubs of protos/ into libs/protos
	@$(BIN)/python libs/protos/build.py

stubs: setup ## build the client wheel, build/stubs/dist/isthmus_client-*.whl
	@$(BIN)/python -m deploy.stubs

# ---- checks ----
lint: setup ## ruff, import-linter, buf
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/lint-imports --no-cache
	@$(BIN)/buf lint
	@$(BIN)/buf format --diff --exit-code
	@image=$$(ls deploy/protos/*.binpb 2>/dev/null | sort -V | tail -n 1); \
	if [[ -n $$image ]]; then $(BIN)/buf breaking --against "$$image"; \
	else echo "buf breaking: nothing to compare with before the first release (deploy/protos/<version>.binpb)"; fi

format: setup ## let ruff and buf lay out the code
	@$(BIN)/ruff check --fix-only --quiet .
	@$(BIN)/ruff format --quiet .
	@$(BIN)/buf format --write

type: setup ## mypy, strict
	@$(BIN)/mypy libs services deploy examples benchmarks

test: setup ## unit, contract, integration and e2e tests
	@$(BIN)/python -m pytest $(wildcard $(addprefix tests/,unit contract integration e2e)) $(ARGS)

unit contract integration e2e conformance: setup
	@$(BIN)/python -m pytest tests/$@ $(ARGS)

# ---- the local stack ----
up: environment ## start the local stack, and say where it listens
	@$(BIN)/python -m deploy.local up $(ARGS)

down: environment ## stop the local stack
	@$(BIN)/python -m deploy.local down $(ARGS)

status: environment ## show each process of the local stack
	@$(BIN)/python -m deploy.local status $(ARGS)

logs: environment ## show the last log lines (S=deployer: of one service)
	@$(BIN)/python -m deploy.local logs $(S) $(ARGS)

restart: environment ## restart the local stack (S=deployer: one service)
	@$(BIN)/python -m deploy.local restart $(S) $(ARGS)

demo: environment ## the main job on real data: train, serve, release, ask, tune, break, roll back
	@$(BIN)/python -m examples.demo $(ARGS)

faults: setup ## the demo with kill -9 of random services and agents (SEEDS=20 runs of it)
	@SEEDS=$(SEEDS) $(BIN)/python -m pytest tests/e2e/test_demo_faults.py -s $(ARGS)

fuzz: setup ## random graphs and changed models through the engine (SEEDS=2000 of each; ARGS='--from 5000')
	@$(BIN)/python -m services.engine.testing_graphs --seeds $(SEEDS) $(ARGS)

clean: ## remove what can be made again, except .venv and var
	@rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis libs/protos/isthmus libs/protos/etcd_stubs libs/protos/inference
