# Everything one types here; `make help` says what each does.
# PYTHON is the interpreter the environment is made with: make setup PYTHON=python3.12

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Two worker processes of one thread each fill two cores; more do not help.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: help setup quickstart test test-slow test-cpus test-gpu test-all fuzz coverage check audit bench bench-gpu docs notebooks wheel clean
.DELETE_ON_ERROR:

help:
	@echo "make setup       install into $(VENV), the core only, or with EXTRAS=metrics,serve more"
	@echo "make quickstart  from bundled text to two small language models, in minutes"
	@echo "make test        run the tests, under five minutes on two cores"
	@echo "make test-all    run them and the slow ones: every family, compiling, kills, browsers"
	@echo "make test-cpus   run the tests of numbers as other CPUs would: older ones, two threads, another seed, other rounding"
	@echo "make test-gpu    run the tests that need a GPU"
	@echo "make fuzz        damage files for every reader, an hour each, one after the other"
	@echo "make coverage    lines of src that make test runs"
	@echo "make check       formatting, lint, types"
	@echo "make audit       known vulnerabilities of the dependencies; needs the network"
	@echo "make bench       run the benchmarks beside their peers, into benchmarks/RESULTS.md"
	@echo "make bench-gpu   measure one GPU in eight minutes: training, decoding, tests; into gpu-results/"
	@echo "make docs        write the reference pages, build the site in site/"
	@echo "make notebooks   write the tutorials and the book's chapters as Jupyter notebooks, in notebooks/"
	@echo "make wheel       build the package for pip and uv, in dist/"
	@echo "make clean       remove $(VENV) and what tools left behind"

# Optional parts, now or later: make setup EXTRAS=metrics,serve
setup: $(VENV)/installed-core
	@$(if $(EXTRAS),echo "installing what $(EXTRAS) need" && $(PIP) -e '.[$(EXTRAS)]')
	@echo "Trivium is in $(VENV); now:  . $(BIN)/activate  and  trivium --help"
	@$(if $(EXTRAS),,echo "The server, metrics and other optional parts:  make setup EXTRAS=all")

quickstart: $(VENV)/installed-core
	@$(BIN)/trivium quickstart

test: $(VENV)/installed-test
	@$(PYTEST)

test-slow: $(VENV)/installed-test
	@$(PYTEST) -m "slow and not gpu"

# On a machine with a GPU, where all of them are used.
test-gpu: $(VENV)/installed-test
	@$(PYTEST) -m gpu

# The fast tests of numbers as other CPUs would run them; CPUS="--commit HASH" chooses one setting of six.
test-cpus: $(VENV)/installed-test
	@$(BIN)/python tests/cpus.py $(CPUS)

test-all: test test-slow

# Six hundred seconds of every reader: make fuzz FUZZ="--seconds 600 --jobs 2"
fuzz: $(VENV)/installed-test
	@$(BIN)/python tests/fuzz/fuzz.py $(FUZZ)

coverage: $(VENV)/installed-dev
	@$(PYTEST) --cov=trivium --cov-report=term:skip-covered

check: $(VENV)/installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright

# A package that the database does not know fails, so that an audit of nothing is no success.
audit: $(VENV)/installed-test
	@$(PIP) pip-audit
	@$(BIN)/pip freeze --exclude-editable | sed 's/+.*//' > $(VENV)/audited.txt
	@$(BIN)/pip-audit --strict --no-deps --disable-pip -r $(VENV)/audited.txt

bench: $(VENV)/installed-dev
	$(BIN)/python benchmarks/run_all.py

# Longer, or some parts only: make bench-gpu GPU="--minutes 30 --parts train-gpt2,decode"
bench-gpu: $(VENV)/installed-test
	@$(BIN)/python benchmarks/gpu.py $(GPU)

docs: $(VENV)/installed-docs
	@$(BIN)/python docs/make_reference.py
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	@echo "open site/index.html"

notebooks: $(VENV)/installed-docs
	@$(BIN)/python docs/make_notebooks.py

# The same sources give the same bytes: files carry the date of the last commit. An earlier build
# folder would add files that no longer exist.
DIST ?= dist
wheel: $(BIN)/python
	@rm -rf build $(DIST)/trivium-*.whl
	@SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct 2>/dev/null || echo 1767225600) \
		$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir $(DIST) .
	@rm -rf build
	@ls $(DIST)/trivium-*.whl

clean:
	rm -rf $(VENV) build dist site notebooks src/*.egg-info .pytest_cache .ruff_cache .hypothesis .coverage
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Trivium needs Python 3.11 or newer: make setup PYTHON=python3.12"; exit 1; }
	@echo "making $(VENV) with $(PYTHON)"
	@$(PYTHON) -m venv $(VENV)

# Installed again only when what it depends on has changed.
$(VENV)/installed-core: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing Trivium (the first time takes a few minutes)"
	@$(PIP) -e .
	@touch $@

$(VENV)/installed-test: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing what the tests need"
	@$(PIP) -e '.[test]'
	@touch $@ $(VENV)/installed-core

$(VENV)/installed-docs: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing what the site needs"
	@$(PIP) -e '.[docs]'
	@touch $@ $(VENV)/installed-core

$(VENV)/installed-dev: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing what development needs"
	@$(PIP) -e '.[dev]'
	@touch $@ $(VENV)/installed-core $(VENV)/installed-test $(VENV)/installed-docs
