# make repro     from nothing to a translation model, its BLEU and a report
# make test      style, types and the fast tests
# make test-all  the slow tests too, more examples of each property, coverage; .state/tests.xml has how long each test took
# make test-kernels  the kernels for GPUs: right in Triton's interpreter, and compiled. No GPU is needed; installs Triton into .state (Linux)
# make faults    ROUNDS=200 SEED=1: faults on purpose in a tiny pipeline, with a table (docs/operations.md)
# make image     a container image of the tracked files at HEAD, and of nothing else (BUILD='--tag NAME')
# make audit     the vulnerabilities that PyPI knows of the versions in constraints.txt; needs the network
# make docs      the pages as a site with a search: .state/site/html/index.html; needs the network the first time
# Each makes .venv when it is missing or older than pyproject.toml and constraints.txt, and else installs nothing but EXTRAS and PACKAGES.
PYTHON ?= python3
# Extras of the project, and further packages, such as PACKAGES='dvc[s3]'.
EXTRAS ?= dev
PACKAGES ?=
BIN := .venv/bin
INSTALLED := .venv/.installed
# A file of tests a core: most of the time they wait for processes that they have started.
PYTEST := $(BIN)/pytest --numprocesses=logical --maxprocesses=4 --no-loadscope-reorder --dist=loadfile --durations=30
THOROUGH := --hypothesis-profile=thorough --cov --cov-report=term:skip-covered --cov-fail-under=85 --junitxml=.state/tests.xml

.PHONY: repro test test-all test-kernels docs faults image audit check install

repro: install
	$(BIN)/dvc repro
	@echo
	@$(BIN)/python -m flows.scores

test: check
	$(PYTEST) -m "not slow"

test-all: check
	$(PYTEST) $(THOROUGH)

# Not in .venv, where it would take 700 MB of every CPU's installation; a PyTorch for GPUs brings its own.
TRITON := .state/triton-3.7.1
test-kernels: install $(TRITON)
	PYTHONPATH=$(TRITON) TRITON_INTERPRET=1 $(PYTEST) -m kernel tests/models/test_kernels.py
	PYTHONPATH=$(TRITON) TRITON_INTERPRET=0 $(PYTEST) tests/models/test_compiled_kernels.py

$(TRITON): | $(INSTALLED)
	@rm -rf $@.new
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target $@.new triton==$(@:.state/triton-%=%)
	@mv $@.new $@

# An environment of its own: the project needs nothing of it. The pages are a copy of the repository, so that their links to code lead to it.
SITE := .state/site
docs:
	@$(PYTHON) -m venv $(SITE)/venv
	@$(SITE)/venv/bin/python -m pip install --quiet --disable-pip-version-check zensical==0.0.73
	@rm -rf $(SITE)/pages && mkdir $(SITE)/pages
	@git ls-files -z --cached --others --exclude-standard | tar --null --files-from=- --create | tar --extract --directory=$(SITE)/pages
	$(SITE)/venv/bin/zensical build --clean --strict
	@echo "$(SITE)/html/index.html"

faults: install
	$(BIN)/python -m tests.faults --rounds $(or $(ROUNDS),38) --seed $(or $(SEED),1)

image:
	git archive HEAD | docker build $(or $(BUILD),--tag transformer-pipeline) -

# An environment of its own. --strict: where PyPI's JSON pages are missing, as behind a mirror, the audit fails instead of finding nothing.
AUDIT := .state/audit
audit:
	@$(PYTHON) -m venv $(AUDIT)
	@$(AUDIT)/bin/python -m pip install --quiet --disable-pip-version-check pip-audit==2.10.1
	$(AUDIT)/bin/pip-audit --strict --requirement constraints.txt --no-deps --disable-pip

check: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Extras and packages are also installed into an environment that is there.
ifneq ($(EXTRAS)$(PACKAGES),dev)
.PHONY: $(INSTALLED)
endif
install: $(INSTALLED)

$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or later is needed: make PYTHON=python3.11 ...")'
	@echo "Installing into .venv: some minutes and gigabytes the first time ..."
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --disable-pip-version-check --constraint constraints.txt --editable '.$(EXTRAS:%=[%])' $(PACKAGES:%='%')
	@touch $@
