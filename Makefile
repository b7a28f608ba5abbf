# PYTHON   the interpreter that makes .venv: 3.11 or newer
# FLAVOUR  cpu or gpu; found out from nvidia-smi when not given
# ARGS     options handed to the recipe or to pytest, e.g. make mini ARGS="--run.steps 3"
# AZR_DATA folder of public data sets (cruxeval.jsonl, MbppPlus.jsonl) that some tests run; without it these are skipped
# AZR_MODELS folder of real models (smollm2-135m, qwen2.5-coder-0.5b) that some tests ask, by default .cache/models, where
#          python -m tools.smollm2 .cache/models/smollm2-135m puts the first
PYTHON ?= python3
FLAVOUR ?= $(if $(shell command -v nvidia-smi),gpu,cpu)
ARGS ?=

BIN := .venv/bin
PIP := $(BIN)/pip --disable-pip-version-check
LOCK := requirements/$(FLAVOUR).lock
# The index of builds of torch without CUDA, which are several GB smaller. Where it cannot be reached, pip says so and goes on.
TORCH_INDEX ?= $(if $(filter cpu,$(FLAVOUR)),--retries 1 --timeout 15 --extra-index-url https://download.pytorch.org/whl/cpu)
STAMP := .venv/.installed-$(FLAVOUR)
OTHER := $(filter-out $(STAMP),.venv/.installed-cpu .venv/.installed-gpu)

$(if $(filter cpu gpu,$(FLAVOUR)),,$(error FLAVOUR is cpu or gpu, not $(FLAVOUR)))

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.PHONY: install mini lint test test-long docs clean

install: $(STAMP)

mini: install
	@$(BIN)/python -m playground.azr_14m_mini $(ARGS)

lint: install
	@$(BIN)/ruff check --quiet
	@$(BIN)/ruff format --check --quiet || { echo 'Some files are not formatted: run $(BIN)/ruff format'; exit 1; }
	@$(BIN)/mypy
	@$(BIN)/lint-imports

# Tests that take Ray go to one of two processes, with one cluster for all of them; the others go to the second, file by file.
test: lint
	@$(BIN)/pytest -n 2 --no-loadscope-reorder $(ARGS)

# What the short form leaves out, in parts that are not run again on the same commit; ARGS="--part 3" takes one of them.
test-long: lint
	@$(BIN)/python -m tests.long_form $(ARGS)

# The site has an environment of its own, so that it shares no version with a run.
docs: .cache/docs/.installed
	@NO_MKDOCS_2_WARNING=1 .cache/docs/bin/mkdocs --quiet build --strict

.cache/docs/.installed: requirements/docs.txt
	@$(PYTHON) -m venv .cache/docs
	.cache/docs/bin/pip --disable-pip-version-check install -q -r $<
	@touch $@

clean:
	rm -rf .venv .cache .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache build ./*.egg-info

.venv/bin/pip:
	@case '$(CURDIR)' in *' '*) echo 'Ray cannot start workers from a path with a space in it: move the clone out of $(CURDIR)'; exit 2;; esac
	@command -v $(PYTHON) >/dev/null || { echo 'AZR needs Python 3.11 or newer, and there is no $(PYTHON): install it, or name one with make PYTHON=...'; exit 2; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "AZR needs Python 3.11 or newer, and $(PYTHON) is $$($(PYTHON) -V): name a newer one with make PYTHON=..."; exit 2; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo '$(PYTHON) cannot make virtual environments: install its venv module (on Debian and Ubuntu: apt-get install python3-venv)'; exit 2; }
	@$(PYTHON) -m venv .venv

# Order matters. DeepSpeed comes as source and reads torch while it is built. torch comes with its
# dependencies, because a CUDA build from elsewhere has some that the CPU lock lacks. Then the lock and nothing else.
$(STAMP): $(LOCK) pyproject.toml | .venv/bin/pip
	@test ! -e $(OTHER) || { echo '.venv holds the other flavour ($(OTHER)): run make clean first, or give FLAVOUR'; exit 2; }
	$(PIP) install -q -c $(LOCK) pip setuptools ninja packaging psutil py-cpuinfo
	$(PIP) install -q -c $(LOCK) $(TORCH_INDEX) torch
	DS_BUILD_OPS=0 $(PIP) install -q --no-deps --no-build-isolation -r $(LOCK)
	$(PIP) install -q --no-deps --no-build-isolation -e .
	@touch $@
