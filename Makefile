# `make demo` and `make test` do all their set-up themselves: a virtual environment in .venv, from nothing but Python >= 3.11.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet
export PIP_NO_WARN_SCRIPT_LOCATION := 1

.DEFAULT_GOAL := help
.PHONY: help demo host test test-all test-torch test-torch-cuda docs check kernels unit slow browser screenshots nojit lowest test-lowest corpus laws fuzz stress mutants bench rates figures compare size golden notebooks clean

help:  ## show this help
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-15s %s\n", $$1, $$2}'

demo: $(VENV)/.core  ## best mappings and latencies of a Llama-3-8B layer on three chips
	$(BIN)/python examples/llama3_8b_layer.py

host: $(VENV)/.host  ## this machine's CPU as an accelerator: measured, fitted, and checked on weights held out (3 minutes)
	$(BIN)/gemm-eval measure host

# mypy takes one core for a minute: meanwhile the other compiles the kernels that all tests share.
test:  ## what every commit passes: formatting, lint, types, and all tests that are not slow
	@$(MAKE) --no-print-directory -j 2 check kernels
	@$(MAKE) --no-print-directory unit
	@echo "not run: what is slow, docs, torch, no JIT, the lowest versions: make test-all; tests/gpu: $(BIN)/pytest -m gpu tests/gpu"

PARTS := test slow nojit lowest docs test-torch test-torch-cuda
test-all: $(VENV)/.dev  ## all that runs without a GPU, part by part, and how long each part took (an hour)
	@$(BIN)/python -m tools.parts $(PARTS)

# An environment of its own: Triton comes in a version that our kernels are not recorded with. The build for CPUs is a
# third of the other, where pip finds it (--find-links, or an index that has it), and torchvision has none without CUDA.
TORCH := $(VENV)-torch
TORCH_CPU := torch==2.13.0+cpu triton~=3.7.0
TORCH_TESTS := tests/torch tests/kernels/test_w4_linear.py \
  "tests/project/test_examples.py::test_example[predict_resnet_and_llama.py]" \
  "tests/project/test_notebooks.py::test_runs[torch_on_gpus.ipynb]"
test-torch:  ## what needs torch or transformers, in an environment of its own (2 GB, or 5 with CUDA); no GPU
	@if $(MAKE) --no-print-directory $(TORCH)/.extra; then \
	  $(TORCH)/bin/python -m pytest -p no:cacheprovider -q $(TORCH_TESTS); \
	elif [ -n "$$CI" ]; then exit 1; else echo "torch cannot be installed: not tested" >&2; fi

test-torch-cuda:  ## the same with torch's CUDA build and torchvision: whole models of vision too
	@$(MAKE) --no-print-directory test-torch TORCH=$(TORCH)-cuda TORCH_CPU="torch torchvision"

# An environment of its own: nothing else is held back by what builds a site. Its tests look at what was built.
DOCS := $(VENV)-docs
docs: browser  ## the site of docs/ in site/ (open site/index.html): warnings are errors; then looked at, in a browser too
	@if $(MAKE) --no-print-directory $(DOCS)/.extra; then \
	  NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/python -m mkdocs build --strict --quiet && \
	  $(DOCS)/bin/python -m pytest -p no:cacheprovider -q tests/site && echo "open site/index.html"; \
	elif [ -n "$$CI" ]; then exit 1; else echo "what builds the docs cannot be installed: not built" >&2; fi

check: $(VENV)/.dev  ## formatting, lint and types only
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

kernels: $(VENV)/.dev  # so that no two processes of the tests compile the same ones at the same time
	@$(BIN)/python -m gemm_eval.compiled --all

unit: $(VENV)/.dev browser  ## all tests that need no GPU and are not slow
	$(BIN)/pytest -m "not gpu and not slow" -n auto

slow: $(VENV)/.dev browser  ## the tests that commits skip: wheels, notebooks, recipes, fuzz, every kernel compiled, every fit
	$(BIN)/pytest -m "slow and not gpu" -n auto
	$(BIN)/pytest tests/property tests/oracle -m "not slow and not gpu" -n auto --hypothesis-profile=thorough

CHROMIUMS := chromium chromium-browser google-chrome google-chrome-stable chrome
browser:  # for tests/browser, which skip without one; nothing is installed on a developer's machine
	@if [ -n "$$CI" ] && [ -z "$$GEMM_EVAL_CHROMIUM" ] && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null \
	  && ! { for name in $(CHROMIUMS); do command -v $$name && break; done; } >/dev/null; then \
	  echo "installing chromium for tests/browser"; \
	  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium; } \
	    >/dev/null || echo "chromium cannot be installed: tests/browser will be skipped" >&2; \
	fi

screenshots: $(VENV)/.dev browser  ## pictures of every page and plot, four widths, light and dark, in the folder screenshots; NAMES=--readme: README's
	$(BIN)/python -m tools.screenshots $(NAMES)

nojit: $(VENV)/.dev  ## the oracle tests with the kernels as plain Python
	NUMBA_DISABLE_JIT=1 $(BIN)/pytest tests/property -m "not slow and not gpu" -n auto --hypothesis-profile=nojit

# No extras at all: every command then works, or says which it needs.
LOWEST := $(VENV)-lowest
LOWEST_TESTS := $(addprefix tests/project/test_,extras.py install.py errors.py) $(addprefix tests/arch/test_,arch_loading.py arch_spec.py) \
  tests/workload/test_problem.py tests/evaluate/test_evaluator.py
lowest:  ## every command and the core's tests, with the lowest versions that pyproject.toml promises and no extras
	@if $(MAKE) --no-print-directory $(LOWEST)/.core; then \
	  GEMM_EVAL_CACHE_DIR=$(CURDIR)/$(LOWEST)/cache $(LOWEST)/bin/python -m pytest -p no:cacheprovider -q $(LOWEST_TESTS); \
	elif [ -n "$$CI" ]; then exit 1; else echo "the lowest versions cannot be installed: not tested" >&2; fi

test-lowest:  ## all tests with the lowest versions of everything, extras too (half an hour); old versions may warn
	$(PYTHON) -m venv --clear $(LOWEST)-all
	$(PYTHON) tools/lowest.py > $(LOWEST)-all/constraints.txt
	$(LOWEST)-all/bin/python -m pip --disable-pip-version-check install --quiet -c $(LOWEST)-all/constraints.txt -e ".[dev]"
	GEMM_EVAL_CACHE_DIR=$(CURDIR)/$(LOWEST)-all/cache $(LOWEST)-all/bin/python -m pytest -W default -p no:cacheprovider -m "not gpu" -n auto

corpus: $(VENV)/.dev  ## a digest of what the public API answers to 78,000 fixed questions (3 minutes); ARGS="--write DIR", then "--against DIR"
	$(BIN)/python -m tools.corpus $(ARGS)

COUNT ?= 100000
SEED ?= 0
laws: $(VENV)/.dev  ## COUNT random problems from SEED on: search against brute force, physics, multi-core chips
	$(BIN)/python -m tools.laws --count $(COUNT) --seed $(SEED)

fuzz: $(VENV)/.dev  ## ten thousand damaged inputs of every kind: only the project's errors, in bounded time and memory
	$(BIN)/python -m tools.fuzz --count 10000 --seed $(SEED)

stress: $(VENV)/.dev  ## 200 kills of processes that crowd one cache and one sweep folder: nothing lost, nothing doubled
	$(BIN)/python -m tools.stress.cache --kills 200
	$(BIN)/python -m tools.stress.sweep --kills 200

mutants: $(VENV)/.dev  ## 200 random mutations of models and search: which change an answer, and which of those a test catches
	$(BIN)/python -m tools.mutation --count 200 --seed $(SEED)

bench: $(VENV)/.dev  ## speed, as ratios within one run
	$(BIN)/pytest tests/benchmarks --benchmark-enable --benchmark-only --benchmark-group-by=group \
	  --benchmark-columns=median,min,max,rounds --benchmark-sort=mean

rates: $(VENV)/.dev  ## what sweeps cost: evaluations a second, on Dask too, and memory of a million points (5 minutes)
	$(BIN)/python -m tools.sweep_rates

figures: $(VENV)/.dev  ## docs/figures.md of the documents in docs/figures; RUN="gpu w4a16" makes these anew first
	$(BIN)/python -m tools.figures $(if $(RUN),--run $(RUN))

SIMULATORS := $(VENV)-simulators
compare: $(SIMULATORS)/.extra  ## our multi-core model beside ZigZag and SCALE-Sim on the same GEMMs and chips (half an hour)
	$(SIMULATORS)/bin/python -m benchmarks.simulators $(if $(CSV),--csv $(CSV))

size: $(VENV)/bin/python  ## Python lines and files by package, and megabytes of a core install
	@$(BIN)/python tools/size.py
	@$(BIN)/python tools/size.py --install

golden: $(VENV)/.dev  ## write the golden mappings and rankings anew and say what changed, after a change that is meant to
	$(BIN)/python -m tools.golden.answers

NOTEBOOKS ?=
notebooks: $(VENV)/.dev  ## run the notebooks and store their outputs anew (5 minutes); NOTEBOOKS="NAME ..." for some
	$(BIN)/python -m tools.notebooks $(NOTEBOOKS)
	@if [ -e $(TORCH)/.extra ] && [ -n "$(filter torch_on_gpus,$(or $(NOTEBOOKS),torch_on_gpus))" ]; then \
	  $(TORCH)/bin/python -m tools.notebooks torch_on_gpus; fi

clean:  ## remove the virtual environment and caches of tools
	rm -rf $(VENV) $(TORCH) $(TORCH)-cuda $(DOCS) site $(LOWEST) $(LOWEST)-all $(VENV)-simulators .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks .durations.json

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit("gemm_eval needs Python 3.11 or later, this is " + sys.version.split()[0]) if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)

# scalesim holds numpy back: not in the environment of everything else
$(SIMULATORS)/.extra: pyproject.toml
	$(PYTHON) -m venv --clear $(SIMULATORS)
	$(SIMULATORS)/bin/python -m pip --disable-pip-version-check install --quiet -e ".[simulators]"
	@touch $@

$(TORCH)/.extra: pyproject.toml
	$(PYTHON) -m venv --clear $(TORCH)
	@for build in "$(TORCH_CPU)" "torch torchvision"; do \
	  $(TORCH)/bin/python -m pip --disable-pip-version-check install --quiet -e ".[torch,plot]" $$build transformers \
	    pytest hypothesis nbformat nbclient ipykernel && exit 0; \
	done; exit 1
	@touch $@

$(DOCS)/.extra: pyproject.toml
	$(PYTHON) -m venv --clear $(DOCS)
	$(DOCS)/bin/python -m pip --disable-pip-version-check install --quiet -e ".[docs]" pytest hypothesis playwright
	@touch $@

$(VENV)/.core: $(VENV)/bin/python pyproject.toml
	$(PIP) -e .
	@touch $@

$(VENV)/.host: $(VENV)/bin/python pyproject.toml
	$(PIP) -e ".[host]"
	@touch $@

$(LOWEST)/.core: pyproject.toml tools/lowest.py
	$(PYTHON) -m venv --clear $(LOWEST)
	$(PYTHON) tools/lowest.py > $(LOWEST)/constraints.txt
	$(LOWEST)/bin/python -m pip --disable-pip-version-check install --quiet -c $(LOWEST)/constraints.txt -e . pytest hypothesis
	@touch $@

$(VENV)/.dev: $(VENV)/bin/python pyproject.toml
	$(PIP) -e ".[dev]"
	@touch $@ $(VENV)/.core
