# Everything a newcomer needs: make up, make test, make lint, make bench.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin

.DEFAULT_GOAL := help
.PHONY: help up test test-torch lint format bench constraints clean

help:  ## this list
	@grep -hE '^[a-z-]+: .*## |^[a-z-]+:  ## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

PIP_INSTALL := pip install --quiet --disable-pip-version-check -c constraints.txt

$(VENV)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] < (3, 13))' \
	  || { echo "Python 3.10 to 3.12 is needed, $(PYTHON) is $$($(PYTHON) -V 2>&1). Try: make $(MAKECMDGOALS) PYTHON=python3.12"; exit 1; }
	@echo "Installing into $(VENV), once: about a minute when pip has the packages already …"
	@$(PYTHON) -m venv $(VENV) || { echo "No virtual environment could be made: apt-get install python3-venv"; exit 1; }
	@$(BIN)/$(PIP_INSTALL) -e '.[local,build]'
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	@echo "Installing what tests and linters need …"
	@$(BIN)/$(PIP_INSTALL) -e '.[local,build,dev]'
	@touch $@

up: $(VENV)/.installed  ## a real Triton and the gateway, on this machine, without a GPU
	@exec $(BIN)/tidegate up

test: $(VENV)/.installed-dev  ## every test that needs no GPU, on a real Triton
	$(BIN)/python -m pytest

test-torch: $(VENV)-torch/.installed  ## the default model against the original network (needs torch)
	$(VENV)-torch/bin/python -m pytest tests/build_engines/test_against_torch.py

$(VENV)-torch/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -m venv $(VENV)-torch
	@$(VENV)-torch/bin/$(PIP_INSTALL) -e '.[local,build,dev,torch]'
	@touch $@

lint: $(VENV)/.installed-dev  ## formatter, linter, type checker
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/mypy model_repository/preprocessor/1
	$(BIN)/mypy tests/triton/models/probe/1/model.py

format: $(VENV)/.installed-dev  ## what the formatter and the linter can mend by themselves
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(VENV)/.installed-dev  ## the benchmark suite
	$(BIN)/python -m benchmarks

constraints:  ## pin what is installed, afresh, for every Python
	$(PYTHON) .ci/constraints.py python3.10 python3.11 python3.12

clean:  ## forget the environments and the built model
	rm -rf $(VENV) $(VENV)-torch model_repository/classifier/[0-9]* model_repository/classifier/certificate.json
