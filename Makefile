# One virtual environment, made once and remade when pyproject.toml changes.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: train test check bench clean
.DEFAULT_GOAL := help

help:
	@echo "make train    set up, train the default model, say where the results are"
	@echo "make test     set up, run the tests"
	@echo "make check    format, lint and types"
	@echo "make bench    compare speed with a bare PyTorch script"

$(VENV)/.installed: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "poslab needs Python 3.11 or newer; say which with: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

train: $(VENV)/.installed
	$(BIN)/python train.py

test: $(VENV)/.installed
	$(BIN)/python -m pytest

check: $(VENV)/.installed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

bench: $(VENV)/.installed
	$(BIN)/python benchmarks/default_run.py

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
