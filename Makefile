# `make demo` and `make test` do all their set-up themselves: a virtual environment in .venv, from nothing but Python >= 3.11.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet
export PIP_NO_WARN_SCRIPT_LOCATION := 1

.DEFAULT_GOAL := help
.PHONY: help demo test check unit browser nojit bench rates plans size golden clean

help:  ## show this help
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-8s %s\n", $$1, $$2}'

demo: $(VENV)/.core  ## best mappings and latencies of a Llama-3-8B layer on three chips
	$(BIN)/python examples/llama3_8b_layer.py

test: check unit nojit  ## everything CI runs: formatting, lint, types, tests, tests without the JIT

check: $(VENV)/.dev  ## formatting, lint and types only
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

unit: $(VENV)/.dev browser  ## all tests that need no GPU
	$(BIN)/pytest -m "not gpu" -n auto

CHROMIUMS := chromium chromium-browser google-chrome google-chrome-stable chrome
browser:  # for tests/browser, which skip without one; nothing is installed on a developer's machine
	@if [ -n "$$CI" ] && [ -z "$$GEMM_EVAL_CHROMIUM" ] && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null \
	  && ! { for name in $(CHROMIUMS); do command -v $$name && break; done; } >/dev/null; then \
	  echo "installing chromium for tests/browser"; \
	  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium; } \
	    >/dev/null || echo "chromium cannot be installed: tests/browser will be skipped" >&2; \
	fi

nojit: $(VENV)/.dev  ## the oracle tests with the kernels as plain Python
	NUMBA_DISABLE_JIT=1 $(BIN)/pytest tests/property -m "not slow and not gpu" -n auto --hypothesis-profile=nojit

bench: $(VENV)/.dev  ## speed, as ratios within one run
	$(BIN)/pytest tests/benchmarks --benchmark-enable --benchmark-only --benchmark-group-by=group \
	  --benchmark-columns=median,min,max,rounds --benchmark-sort=mean

rates: $(VENV)/.dev  ## what sweeps cost: evaluations a second, on Dask too, and memory of a million points (40 minutes)
	$(BIN)/python -m tests.benchmarks.sweep_rates

plans: $(VENV)/.dev  ## what each search plan saves and loses against the exact search
	$(BIN)/python -m tests.benchmarks.plan_losses

size: $(VENV)/bin/python  ## megabytes of a core install, without what a fresh virtual environment holds
	rm -rf $(VENV)-size && $(PYTHON) -m venv $(VENV)-size
	@before=$$(du -sm $(VENV)-size | cut -f1); $(VENV)-size/bin/python -m pip install --quiet --disable-pip-version-check . ; \
	  after=$$(du -sm $(VENV)-size | cut -f1); echo "core install: $$((after - before)) MB"; rm -rf $(VENV)-size

golden: $(VENV)/.dev  ## write the golden mappings and rankings anew, after a change that is meant to change answers
	$(BIN)/python -m tests.golden.generate
	$(BIN)/python -m tests.golden.generate_gpu

clean:  ## remove the virtual environment and caches of tools
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit("gemm_eval needs Python 3.11 or later, this is " + sys.version.split()[0]) if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.core: $(VENV)/bin/python pyproject.toml
	$(PIP) -e .
	@touch $@

$(VENV)/.dev: $(VENV)/bin/python pyproject.toml
	$(PIP) -e ".[dev]"
	@touch $@ $(VENV)/.core
