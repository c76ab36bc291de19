# SPDX-License-Identifier: Apache-2.0
# Every target starts from a bare clone: it finds a Python, makes .venv and installs what it needs by pip.
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
SHELL := /bin/bash

PRESET ?= release
JOBS ?= 2
TORCH ?= 0
PY := .venv/bin/python
PIP := $(PY) -m pip --disable-pip-version-check --no-input
export PATH := $(CURDIR)/.venv/bin:$(PATH)
# A stray site of the caller must not decide what a test imports.
unexport PYTHONPATH
export PYTHONNOUSERSITE := 1

SOURCES := $(shell find cmake csrc python -type f -name '*.[ch]*' -o -type f -path 'python/*.py*' ! -name '*.pyc')
CPP_FILES = $(shell find csrc tests/cpp bench -type f \( -name '*.h' -o -name '*.cpp' -o -name '*.cu*' \) ! -path 'bench/limits/*')
# The requirement lists of pyproject.toml, so that no name stands in two places.
LIST := $(PY) -c 'import sys, tomllib; d = tomllib.load(open("pyproject.toml", "rb")); \
	e = d["project"]["optional-dependencies"]; \
	print("\n".join(d["build-system"]["requires"] if sys.argv[1] == "build" else e[sys.argv[1]]))'

# A Python that can make environments and has the headers that extensions need.
define USABLE
import ensurepip, os, sys, sysconfig, venv
headers = os.path.join(sysconfig.get_path("include"), "Python.h")
sys.exit(sys.version_info < (3, 11) or not os.path.exists(headers))
endef
export USABLE

.PHONY: help demo test cpp bench lint format stub reference soak faults fuzz skew weaken mutants clean

help:  ## what can be made (options of demo, test, bench: ARGS="..."; also PYTHON=, JOBS=)
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' Makefile | expand -t 10

.venv/.made: tests/constraints.txt
	@set -e; found=; \
	for python in $(PYTHON) python3.11 python3.12 python3.13 python3 "$$HOME"/.pyenv/versions/3.1[1-3].*/bin/python3; do \
	  if "$$python" -c "$$USABLE" 2>/dev/null; then found=$$python; break; fi; \
	done; \
	if [ -z "$$found" ]; then \
	  echo "no Python >= 3.11 with venv and C headers found: make PYTHON=..." >&2; exit 1; fi; \
	[ -x $(PY) ] || { echo "making .venv with $$($$found --version)"; "$$found" -m venv .venv; }
	@mkdir -p build
	@$(LIST) build > build/requirements-build.txt
	@command -v ninja > /dev/null || echo ninja >> build/requirements-build.txt
	@cmake --version 2> /dev/null | grep -Eq 'version (3\.(2[4-9]|3)|[4-9])' || echo cmake >> build/requirements-build.txt
	@$(PIP) install -q -c tests/constraints.txt numpy -r build/requirements-build.txt
	@touch $@

.venv/.package: .venv/.made $(SOURCES) CMakeLists.txt pyproject.toml
	@echo "building hybridkv"
	@$(PIP) install -q --no-build-isolation --no-deps --force-reinstall --config-settings=build-dir=build/{wheel_tag} $(MODULE_SETTINGS) .
	@touch $@

.venv/.tools: .venv/.made pyproject.toml
	@$(LIST) test > build/requirements-test.txt
	@$(PIP) install -q -c tests/constraints.txt -r build/requirements-test.txt
	@touch $@

# torch, transformers and matplotlib: what real models and the pictures of them need.
.venv/.models: .venv/.made pyproject.toml
	@for extra in torch transformers plots; do $(LIST) $$extra; done | sort -u > build/requirements-models.txt
	@echo "installing $$(tr '\n' ' ' < build/requirements-models.txt)"
	@$(PIP) install -q -c tests/constraints.txt -r build/requirements-models.txt
	@touch $@

PARALLEL := -n $(JOBS) --dist worksteal
TEST_TOOLS := .venv/.package .venv/.tools $(if $(filter 1,$(TORCH)),.venv/.models)

demo: .venv/.package .venv/.models  ## real models and real traces: a hash-hit rule, and what is usable
	@$(PY) -m hybridkv demo $(ARGS)

cpp: .venv/.made  ## build the C++ tests (PRESET=release, debug, asan-ubsan, tsan)
	@cmake --preset $(PRESET) > build/configure-$(PRESET).log || { cat build/configure-$(PRESET).log; exit 1; }
	@cmake --build --preset $(PRESET) -j $(JOBS)

test: $(TEST_TOOLS) cpp  ## build everything, run the C++ and the Python tests (TORCH=1: with torch and transformers)
	@ctest --preset $(PRESET) -LE relacy
	@$(PY) -m pytest $(PARALLEL) $(ARGS)

bench: $(TEST_TOOLS)  ## measure (HYBRIDKV_BENCH_SMOKE=1: tiny)
	@cmake --preset bench > build/configure-bench.log || { cat build/configure-bench.log; exit 1; }
	@cmake --build --preset bench -j $(JOBS)
	@HYBRIDKV_BENCH_PROGRAMS="$(CURDIR)/build/bench" $(PY) -m pytest bench $(ARGS)

lint: .venv/.package .venv/.tools  ## ruff, mypy, clang-format
	@ruff check .
	@ruff format --check .
	@$(PY) -m mypy
	@clang-format --dry-run -Werror $(CPP_FILES)

format: .venv/.tools  ## rewrite sources in the house's format
	@ruff check --fix .
	@ruff format .
	@clang-format -i $(CPP_FILES)

stub: .venv/.package .venv/.tools  ## rewrite python/hybridkv/_core.pyi from the built module
	@PYTHONPATH=tests $(PY) tests/house/stub.py --write

reference: .venv/.package  ## rewrite docs/api from the docstrings
	@PYTHONPATH=tests $(PY) tests/house/api_reference.py --write

soak: $(TEST_TOOLS) cpp  ## long property and stress runs
	@HYBRIDKV_SOAK=1 ctest --preset $(PRESET) -LE relacy
	@HYBRIDKV_SOAK=1 $(PY) -m pytest $(PARALLEL) $(ARGS)

faults: .venv/.package .venv/.tools .venv/.models  ## break states of a real model, and what a disk tier stands on: the long form
	@HYBRIDKV_SOAK=1 $(PY) -m pytest tests/python/test_faults*.py -m "soak or not soak" $(ARGS)
	@$(PY) -m tests.disk_faults

fuzz: .venv/.package .venv/.models  ## a million inputs for every parser of bytes of others, or ten minutes of them
	@$(PY) -m tests.fuzz $(ARGS)

skew: .venv/.package .venv/.models  ## images of other versions of transformers, each in its own build/skew-VERSION
	@$(PY) tests/skew/run.py $(ARGS)

weaken: .venv/.made  ## weaken each memory order in turn under the model checker (needs relacy-dev)
	@cmake --preset release > build/configure-release.log || { cat build/configure-release.log; exit 1; }
	@cmake --build --preset release --target relacy -j $(JOBS)
	@$(PY) tests/weaken.py build/release

mutants: $(TEST_TOOLS)  ## seed each known bug in turn: its test must notice (needs relacy-dev)
	@$(PY) tests/mutants.py build/mutants $(ARGS)

clean:  ## remove .venv and everything built
	@rm -rf .venv build dist .benchmarks .hypothesis .mypy_cache .pytest_cache .ruff_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
