# Every target sets itself up in a local .venv; Python >= 3.10, make and git are enough to start.

PYTHON ?= python3
VENV ?= .venv
# TORCH=0 leaves torch and Triton out; the tests that need them then skip and say so.
TORCH ?= 1
TORCH_VERSION := 2.13.0
TRITON_VERSION := 3.9.0
PYTEST_ARGS ?= -n 2 --dist worksteal
BENCH_ARGS ?=
MATRIX_ARGS ?=
DEMO_ARGS ?=
FUZZ_ARGS ?= --minutes 5
WHEEL_PYTHONS ?= $(PYTHON) python3.10 python3.12 python3.13

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip -qq --disable-pip-version-check
VERSION := $(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)
# The stamps carry the Python version, so that another PYTHON= makes a new environment.
READY := $(VENV)/.ready-$(VERSION)
TORCH_TRIED := $(VENV)/.torch-triton-tried-$(VERSION)
BYTECODE := $(VENV)/.bytecode-$(VERSION)

# Pictures need no screen and no writable home directory.
export MPLBACKEND := Agg
export MPLCONFIGDIR := $(abspath $(VENV))/matplotlib

.DEFAULT_GOAL := help
.PHONY: help demo test matrix bench fuzz mutate docs wheel lint format clean check-python

help: ## Print this list
	@echo "make TARGET, where TARGET is one of"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-8s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))
	@echo "Variables: PYTHON=$(PYTHON)  TORCH=$(TORCH)  PYTEST_ARGS='$(PYTEST_ARGS)'  MATRIX_ARGS='$(MATRIX_ARGS)'  BENCH_ARGS='$(BENCH_ARGS)'  DEMO_ARGS='$(DEMO_ARGS)'  FUZZ_ARGS='$(FUZZ_ARGS)'"

demo: $(READY) ## Show what megatile does; pictures and traces go to out/
	@$(BIN)/python examples/demo.py $(DEMO_ARGS)

test: $(READY) ## Formatting, lint, types, import layers, then all tests
	@$(MAKE) --no-print-directory -j3 lint $(BYTECODE) $(if $(filter 1,$(TORCH)),$(TORCH_TRIED))
	$(BIN)/python -m pytest $(PYTEST_ARGS)

matrix: $(READY) ## Every collective on every network for 1 to 64 ranks, proved; long (see CONTRIBUTING.md)
	@PYTHONPATH=benchmarks $(BIN)/python -m tests.collectives.matrix $(MATRIX_ARGS)

bench: $(READY) ## Measure, beside rivals where there are any; misses are printed
	@$(BIN)/python benchmarks/run.py $(BENCH_ARGS)

fuzz: $(READY) ## Feed changed inputs of every kind; goes on where it stopped (out/fuzz.json)
	@$(BIN)/python -m tests.fuzz.run $(FUZZ_ARGS)

mutate: $(READY) ## Change one thing in the sources, 200 times; see whether tests notice (SEED=0; goes on where it stopped)
	@$(BIN)/python -m tests.mutation.run --seed $(or $(SEED),0) $(MUTATE_ARGS)

docs: $(READY) ## Build the documentation site into out/site and try it in a browser; a broken link fails
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build  # -q would hide warnings from strict mode
	@SITE=out/site $(BIN)/python -m pytest -q -n 0 tests/docs/test_site.py && echo "open out/site/index.html"

wheel: $(READY) ## Build a wheel and try it in bare environments of the Pythons found (WHEEL_PYTHONS)
	@rm -rf out/dist && $(BIN)/python -m build -q --wheel --outdir out/dist . && rm -rf build
	@for python in $(WHEEL_PYTHONS); do \
	  $$python -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null || continue; \
	  rm -rf out/bare && $$python -m venv out/bare && \
	  out/bare/bin/python -I -m pip -qq --disable-pip-version-check install out/dist/*.whl && \
	  out/bare/bin/python tests/wheel.py || exit 1; \
	done; rm -rf out/bare

lint: $(READY) ## Formatting, lint, types and import layers only
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

format: $(READY) ## Rewrite the sources in the agreed form
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean: ## Remove what the other targets made, .venv included
	rm -rf $(VENV) out build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache src/*.egg-info
	find src tests examples benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

check-python:
	@if [ -z "$(VERSION)" ]; then \
	  echo "megatile needs Python 3.10 or newer, but '$(PYTHON)' does not run: name one with make PYTHON=python3.12" >&2; exit 1; \
	elif ! $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))'; then \
	  echo "megatile needs Python 3.10 or newer, but '$(PYTHON)' is $(VERSION): name another with make PYTHON=python3.12" >&2; exit 1; \
	fi

# uv installs in a third of pip's time; where it or its index is not to be had, pip does it.
$(READY): pyproject.toml | check-python
	@[ -e $@ ] || { echo "Creating $(VENV) with Python $(VERSION)"; $(PYTHON) -m venv --clear $(VENV); }
	@echo "Installing megatile and its development tools into $(VENV) (a minute or two, once)"
	@$(PIP) install uv 2>/dev/null && $(BIN)/uv pip install -q --python $(BIN)/python -e '.[dev]' 2>/dev/null \
	  || $(PIP) install --no-compile -e '.[dev]'
	@$(BIN)/python -W ignore -m megatile.sim.compiled
	@touch $@

# What tests will import is compiled beside the rest of the set-up, not by pip before and not by every worker after.
$(BYTECODE): $(READY)
	@$(BIN)/python -m compileall -qq -x 'site-packages/.*/tests?/' $(VENV)/lib src || true
	@touch $@

# A failure is remembered too: not every Python has a wheel, and everything but the attention part works without.
# Triton is for Linux only; builds of torch for GPUs bring the release that they want.
$(TORCH_TRIED): $(READY)
	@echo "Installing torch $(TORCH_VERSION) into $(VENV) for the attention tests (TORCH=0 leaves it out)"
	@$(PIP) install 'torch==$(TORCH_VERSION)' >$(VENV)/torch.log 2>&1 \
	  || echo "torch $(TORCH_VERSION) could not be installed (see $(VENV)/torch.log): tests that need it will be skipped"
	@$(BIN)/python -c 'import torch, triton' 2>/dev/null \
	  || ! $(BIN)/python -c 'import sys, torch; sys.exit(sys.platform != "linux")' 2>/dev/null \
	  || $(PIP) install 'triton==$(TRITON_VERSION)' >$(VENV)/triton.log 2>&1 \
	  || echo "triton $(TRITON_VERSION) could not be installed (see $(VENV)/triton.log): tests that need it will be skipped"
	@touch $@
