# Every target does its own set-up: a virtual environment with the exact tested versions.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
OUT ?= runs/demo

# As many test processes as cores, or more: a second thread of each would only wait.
test test-oldest fast torture coverage mutation: export OMP_NUM_THREADS := 1

# What is never imported need not be compiled: installing takes two minutes less.
export PIP_COMPILE := 0

# What is imported is compiled once: where this is set, every process compiles torch anew.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: install demo test test-oldest check fast docs torture coverage mutation clean

demo: $(VENV)/.installed
	$(BIN)/fedsim demo --out $(OUT)

install: $(VENV)/.installed

# Files in their order: by default those with the fewest tests come last, which are the slow ones.
# Three at a time on two cores: those that start clusters wait more than they compute.
test: $(VENV)/.installed-dev check
	$(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder

check: $(VENV)/.installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

fast: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder tests --ignore tests/end_to_end

# The oldest versions that pyproject.toml allows, in an environment of their own.
test-oldest: $(VENV)-oldest/.installed
	$(VENV)-oldest/bin/python -m pytest -W default -n 2 --dist loadfile tests --ignore tests/end_to_end

$(VENV)-oldest/.installed: pyproject.toml constraints-oldest.txt
	$(PYTHON) -m venv $(VENV)-oldest
	$(VENV)-oldest/bin/python -m pip install --quiet --constraint constraints-oldest.txt --editable '.[dev]'
	touch $@

torture: $(VENV)/.installed-dev
	FEDSIM_TEST_KILLS=50 $(BIN)/python -m pytest tests/robustness
	$(BIN)/python -m tests.robustness.architectures

# mkdocs 1.6 is pinned; the note about its successor would hide what there is to read.
docs: $(VENV)/.installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# Branches too, and below 90 % it fails; htmlcov/index.html shows them line by line.
coverage: $(VENV)/.installed-dev
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest -n 2 --dist loadfile --no-loadscope-reorder
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage html --quiet --fail-under 0
	$(BIN)/coverage report

# Fails where a protection can go that no test notices; then lists the changes that none notices.
mutation: $(VENV)/.installed-dev
	$(BIN)/python -m tests.mutation pitfalls
	$(BIN)/mutmut run
	$(BIN)/mutmut results

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "fedsim needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: $(VENV)/bin/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable .
	touch $@

# flwr-datasets 0.6 asks for datasets < 5, and works with what is pinned here.
$(VENV)/.installed-dev: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	$(BIN)/python -m pip install --quiet --no-deps flwr-datasets==0.6.1 seaborn==0.13.2
	touch $@

$(VENV)/.installed-docs: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[docs]'
	touch $@

clean:
	rm -rf $(VENV) $(VENV)-oldest runs build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache \
		.coverage .coverage.* htmlcov mutants
