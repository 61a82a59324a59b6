# One virtual environment, made once and remade when pyproject.toml changes.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: help train test test-slow matrix faults check claims calibrate bench clean
.DEFAULT_GOAL := help

help:
	@echo "make train    set up, train the default model, say where the results are"
	@echo "make test     set up, run the tests"
	@echo "make test-slow  the long tests: sweeps, launchers, search, browser"
	@echo "make faults   kill runs anywhere and go on, full disks, a thousand odd command lines; half an hour"
	@echo "make matrix   the tests on this machine's other Pythons and on a minimal Debian 13; hours, 10 GB of disk"
	@echo "make check    format, lint and types"
	@echo "make claims   run the experiments that hold published claims to account; a night"
	@echo "make calibrate  how often the comparison is right, on simulated sweeps; ten minutes"
	@echo "make bench    measure speed against a bare PyTorch loop and others; a quarter of an hour, of a quiet machine"

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "poslab needs Python 3.11 or newer; say which with: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml | $(VENV)/bin/python
	@echo "installing into $(VENV); this takes a minute or two, once"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@touch $@

$(VENV)/.installed-dev: pyproject.toml | $(VENV)/bin/python
	@echo "installing into $(VENV), with what the tests need; this takes a minute or two, once"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@ $(VENV)/.installed

train: $(VENV)/.installed
	$(BIN)/python train.py

# Two workers: the tests run torch on one thread. Bytecode is kept even where the environment says otherwise, because
# the tests start many processes of the same files.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n 2 --dist worksteal
test: $(VENV)/.installed-dev
	$(PYTEST) -m "not faults" --ignore=tests/slow

# All of them, or some: make test-slow SLOW=tests/slow/search
SLOW ?= tests/slow
test-slow: $(VENV)/.installed-dev
	$(PYTEST) $(SLOW)

# All of them, or some: make matrix PYTHONS="3.12 debian"
PYTHONS ?=
matrix:
	PYTHON=$(PYTHON) scripts/matrix.sh $(PYTHONS)

# Other points at each call; FAULTS_SEED=N repeats those of the call that has printed N.
ifndef FAULTS_SEED
FAULTS_SEED := $(shell date +%s)
endif
faults: $(VENV)/.installed-dev
	@echo "points of FAULTS_SEED=$(FAULTS_SEED)"
	FAULTS_SEED=$(FAULTS_SEED) $(PYTEST) tests/faults

check: $(VENV)/.installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

# Each goes on where it was stopped; a sweep with a job that failed is judged by the others.
ALL_CLAIMS := $(notdir $(basename $(wildcard conf/experiment/claims/*.yaml)))
CLAIMS ?= $(ALL_CLAIMS)
claims: $(VENV)/.installed-dev
	@for name in $(CLAIMS); do \
	  test -f conf/experiment/claims/$$name.yaml || { \
	    echo "no claims are called '$$name'; there are: $(ALL_CLAIMS)"; exit 1; }; \
	done
	@for name in $(CLAIMS); do \
	  place=outputs/claims/$$name; \
	  again=$$(test -f $$place/sweep.json && echo sweep.resume=$$place); \
	  $(BIN)/python train.py -m experiment=claims/$$name hydra/launcher=joblib hydra.sweep.dir=$$place $$again || echo "$$name: see above"; \
	done
	$(BIN)/python -m poslab.claims $(addprefix outputs/claims/,$(CLAIMS)) --output outputs/claims/claims.md

calibrate: $(VENV)/.installed-dev
	$(BIN)/python -m poslab.comparison.calibration --output docs/calibration.md

# All parts, or some: make bench PARTS="start fit"
PARTS ?=
bench: $(VENV)/.installed-dev
	$(BIN)/python benchmarks/run.py $(PARTS)

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
