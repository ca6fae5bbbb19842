# make demo, make test: everything else they need is set up first.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
# Any warning is an error, such as a link that leads nowhere; nothing is kept from the last time.
SITE := $(BIN)/sphinx-build --quiet --fail-on-warning --keep-going --fresh-env \
	--conf-dir docs/sphinx --doctree-dir build/doctrees docs build/site

.PHONY: demo demo-deploy test test-all lint docs format bench clean help

help:
	@echo "make demo      watch SecureAFL beat a poisoning attack (a few minutes, most of them to set up)"
	@echo "make demo-deploy  a real server and five real clients, one malicious, one broken (about 5 minutes)"
	@echo "make test      lint and all tests (under 10 minutes on 2 cores)"
	@echo "make test-all  the slow tests too, among them sweeps on Ray and submitit and an installed wheel"
	@echo "make bench     time the server step against the memory floor"
	@echo "make lint      ruff, pyrefly, import-linter, and the docs as a site without a warning"
	@echo "make docs      the docs as a site, with search; says where to open it"
	@echo "make format    let ruff rewrite the code"

$(VENV)/ready: pyproject.toml constraints.txt
	@$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11))" || { echo "needs Python 3.11 or newer: make PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[all]" --group dev
	@touch $@

demo: $(VENV)/ready
	$(BIN)/secureafl compare experiments/quick.toml --defenses async_sgd,trust_clipping

demo-deploy: $(VENV)/ready
	$(BIN)/python scripts/demo_deploy.py runs/demo-deploy-$$(date +%H%M%S)

test: lint
	$(BIN)/pytest

test-all: lint
	$(BIN)/pytest -m "slow or not slow" --timeout 3600

lint: $(VENV)/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyrefly check
	$(BIN)/lint-imports
	$(SITE)

docs: $(VENV)/ready
	$(SITE)
	@echo "open build/site/index.html in a browser; it needs no server and no network"

bench: $(VENV)/ready
	$(BIN)/secureafl bench --quick

format: $(VENV)/ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache
