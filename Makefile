# make repro     from nothing to a translation model, its BLEU and a report
# make test      style, types and the fast tests, with coverage
# make test-all  the slow tests too
# Each makes .venv when it is missing or older than pyproject.toml and constraints.txt, and installs nothing otherwise.
PYTHON ?= python3
VENV := .venv
INSTALLED := $(VENV)/.installed
PACKAGES := transformer_core flows
PYTEST := pytest --cov --cov-report=term:skip-covered --cov-fail-under=85

export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)

.DEFAULT_GOAL := repro
.PHONY: repro install check test test-all

repro: install
	dvc repro
	@echo
	dvc metrics show results/metrics.json

install: $(INSTALLED)

check: install
	ruff check .
	ruff format --check .
	mypy

test: check
	$(PYTEST) -m "not slow"

test-all: check
	$(PYTEST)

$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or later is needed: make PYTHON=python3.11 ...")'
	@echo "Installing into $(VENV): some minutes and gigabytes the first time ..."
	@test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	@$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@
