# Each target works as the very first command in a fresh clone: it makes .venv and installs what it needs, pinned and
# hashed, and again when the requirements change. `make help` lists the targets.

.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
# Stamps: when they are newer than what they depend on, that is installed.
MADE := $(VENV)/.made
RUN := $(VENV)/.installed-run
DEV := $(VENV)/.installed-dev
PEERS := tests/interop/node/node_modules/.installed
PYTHON_PEER := tests/interop/python/.venv/.installed
PYRIGHT := node_modules/.installed

PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check install
COMPILE := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	--no-emit-index-url --no-emit-find-links --no-header $(UPGRADE)
PYTHON ?=
export PYTHON

# More arguments for the command that a target runs: make test ARGS="tests/unit -k codec"
ARGS ?=

.PHONY: help
help: ## List the targets
	@echo 'make TARGET [ARGS="…"]   (ARGS go to the command that demo, test or bench runs)'
	@echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: demo
demo: $(RUN) ## Enrol learners while workers are killed, and audit the outcome
	$(BIN)/echomq demo $(ARGS)

.PHONY: test
test: $(DEV) $(PEERS) $(PYTHON_PEER) $(PYRIGHT) | test-commands ## Run the tests against real servers and Node peers
	$(BIN)/python -m pytest --numprocesses=3 --dist=loadfile $(ARGS)

.PHONY: torture
torture: $(DEV) $(PEERS) $(PYTHON_PEER) | test-commands ## Run the long fault tests, which `test` leaves out
	$(BIN)/python -m pytest -m torture --timeout=3600 $(ARGS)

.PHONY: check
check: lint types layers lua surface ## Run every static check

.PHONY: bench
bench: $(DEV) | bench-commands ## Measure EchoMQ and its peers side by side (ARGS=--quick: 4 minutes)
	$(BIN)/python -m bench.run $(ARGS)

.PHONY: lint
lint: $(DEV) ## Check style, format and spelling
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/codespell

.PHONY: types
types: $(DEV) ## Check the types of src and tests (mypy, strict)
	$(BIN)/mypy

.PHONY: layers
layers: $(DEV) ## Check that imports point downward only
	$(BIN)/lint-imports

.PHONY: lua
lua: $(DEV) | check-commands ## Lint the Lua scripts as the server gets them
	@dir=$$(mktemp -d) && trap 'rm -rf "$$dir"' EXIT && \
	$(BIN)/python -m echomq._lua.loader --assemble "$$dir" && \
	luacheck --quiet --codes --config .luacheckrc "$$dir"
	luacheck --quiet --no-config --only 6 --max-line-length 140 --no-max-comment-line-length src/echomq/_lua

.PHONY: surface
surface: $(DEV) $(PYRIGHT) ## Check that the types of the public surface are complete (pyright)
	PATH="$(CURDIR)/$(BIN):$$PATH" node_modules/.bin/pyright --ignoreexternal --verifytypes echomq

.PHONY: format
format: $(DEV) ## Format the code, and repair what the linter can repair
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

.PHONY: requirements
requirements: $(DEV) ## Write requirements/*.txt anew (UPGRADE=--upgrade for newer versions)
	$(COMPILE) pyproject.toml requirements/run.in --extra embedded --extra cli --extra fast -o requirements/run.txt
	$(COMPILE) pyproject.toml requirements/dev.in --all-extras -o requirements/dev.txt
	$(COMPILE) requirements/peers.in -o requirements/peers.txt

.PHONY: clean
clean: ## Remove everything that the other targets made
	rm -rf $(VENV) node_modules tests/interop/node/node_modules tests/interop/python/.venv dist build site
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

$(MADE):
	.ci/venv $(VENV)
	@touch $@

$(RUN): requirements/run.txt pyproject.toml | $(MADE)
	$(PIP) --require-hashes -r requirements/run.txt
	$(PIP) --no-build-isolation --no-deps --editable .
	@touch $@

$(DEV): requirements/dev.txt pyproject.toml | $(MADE)
	$(PIP) --require-hashes -r requirements/dev.txt
	$(PIP) --no-build-isolation --no-deps --editable .
	@touch $(RUN) $@

$(PEERS): tests/interop/node/package-lock.json | test-commands
	cd tests/interop/node && npm ci --ignore-scripts --loglevel=error
	@touch $@

$(PYTHON_PEER): requirements/peers.txt
	.ci/venv $(@D)
	$(@D)/bin/python -m pip --quiet --disable-pip-version-check install --require-hashes -r requirements/peers.txt
	@touch $@

$(PYRIGHT): package-lock.json | check-commands
	npm ci --ignore-scripts --loglevel=error
	@touch $@

.PHONY: test-commands bench-commands check-commands
# Debian keeps PostgreSQL's programs beside PATH.
test-commands:
	@PATH="$$PATH:/usr/sbin:$$(echo /usr/lib/postgresql/*/bin | tr ' ' ':')" .ci/system-packages \
		redis-server:redis-server node:nodejs npm:npm \
		postgres:postgresql mariadbd:mariadb-server-core my_print_defaults:mariadb-client-core

bench-commands:
	@.ci/system-packages redis-server:redis-server node:nodejs npm:npm

check-commands:
	@.ci/system-packages luacheck:lua-check node:nodejs npm:npm
