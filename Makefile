# Everything a clone needs: `make` alone lists the targets.
PYTHON ?= python3
N ?= 2
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
OLDEST := .venv-oldest
JAX := .venv-jax
# The lowest Keras that pyproject.toml allows; `make test-oldest` runs against it.
OLDEST_KERAS := 3.12
CHECKED := src tests examples tools benchmarks

PIP_FLAGS := --quiet --quiet --disable-pip-version-check
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1

# A function of the environment's folder, the lock, and how large it is: the locked packages, then
# drumbeat itself, editable.
define install
@$(PYTHON) tools/check_python.py
@echo "Installing the locked packages into $(1) (about a minute, $(3))"
@$(PYTHON) -m venv --clear $(1) || { \
  echo "$(PYTHON) can't make a virtual environment. On Debian or Ubuntu: apt-get install python3-venv" >&2; \
  exit 1; }
@$(1)/bin/pip install $(PIP_FLAGS) --require-hashes --requirement $(2)
@$(1)/bin/pip install $(PIP_FLAGS) --no-deps --no-build-isolation --editable .
endef

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-slow test-random test-modes test-old-scripts test-oldest test-jax bench chaos recovery guarantees old-scripts-doc strategy-table test-platforms platform-examples check format lock clean

help: ## List the targets
	@echo "make TARGET [PYTHON=python3.12] [N=workers of the demo] [ARGS='for pytest or the demo']"
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1|\2/p' $(firstword $(MAKEFILE_LIST)) | \
	  awk -F'|' '{ printf "%-16s %s\n", $$1, $$2 }'

setup: $(STAMP) ## Make .venv with the locked packages, when pyproject.toml or the lock changed

$(STAMP): pyproject.toml requirements.lock tools/check_python.py
	$(call install,$(VENV),requirements.lock,2.5 GB)
	@touch $@

demo: $(STAMP) ## Train a small CNN on handwritten digits with N=2 workers
	@$(BIN)/drumbeat run -n $(N) examples/demo.py $(ARGS)

test: $(STAMP) ## Run the tests, without the slow ones
	@$(BIN)/python -m pytest -m "not slow" $(ARGS)

test-slow: $(STAMP) ## Run only the slow tests
	@$(BIN)/python -m pytest -m slow $(ARGS)

test-random: $(STAMP) ## Draw trainings and failures at random, and compare (2 min; test-slow draws more)
	@$(BIN)/python -m pytest $(ARGS) \
	  tests/training/test_drawn_cases.py::test_drawn_cases_are_the_same_on_several_workers \
	  tests/test_chaos.py::test_what_is_killed_and_damaged_at_random_leaves_no_trace

test-modes: $(STAMP) ## Train in ways that `make test` leaves out: plain scripts, XLA, devices, TensorFlow's collectives (6 min)
	@$(BIN)/python -m pytest -m slow $(ARGS) tests/training/test_plain.py \
	  tests/training/test_compiled.py tests/strategies/test_local_devices.py \
	  tests/collectives/test_communicators.py \
	  tests/training/test_exact.py::test_without_drumbeat_run_it_is_the_same \
	  tests/training/coordinated/test_coordinated.py::test_one_worker_is_keras_alone_whatever_dies

test-old-scripts: $(STAMP) ## Run scripts of TensorFlow 2.0 to 2.15 unmodified, on Keras 2, and ported (15 min)
	@$(BIN)/python -m pytest tests/old_scripts tests/training/keras2 $(ARGS)

test-oldest: $(OLDEST)/.installed ## Run the TensorFlow tests against the oldest supported Keras
	@$(OLDEST)/bin/python -m pytest -m "tensorflow and not slow" $(ARGS)

$(OLDEST)/.installed: pyproject.toml requirements.lock tools/check_python.py
	$(call install,$(OLDEST),requirements.lock,2.5 GB)
	@$(OLDEST)/bin/pip install $(PIP_FLAGS) --no-deps "keras==$(OLDEST_KERAS).*"
	@touch $@

test-jax: $(JAX)/.installed ## Run the tests of --backend jax, in an environment with JAX
	@$(JAX)/bin/python -m pytest tests/launch/test_jax.py $(ARGS)

$(JAX)/.installed: pyproject.toml requirements-jax.lock tools/check_python.py
	$(call install,$(JAX),requirements-jax.lock,0.8 GB)
	@touch $@

test-platforms: $(STAMP) ## Rehearse, and submit to Slurm, Compose, Ray and stand-ins of clouds (10 min)
	@$(BIN)/python -m pytest -m slow tests/platforms $(ARGS)

bench: $(STAMP) ## Compare with other ways to train (40 min, 2 idle cores; ARGS='--quick' 5 min, --write)
	@$(BIN)/python benchmarks/compare.py $(ARGS)

chaos: $(STAMP) ## Inject 100 failures into jobs (15 min; ARGS='--faults 20 --seed 7')
	@$(BIN)/python benchmarks/chaos.py $(ARGS)

recovery: $(STAMP) ## What a killed worker and snapshots cost (15 min, 2 idle cores; ARGS='--rounds 3')
	@$(BIN)/python benchmarks/recovery.py $(ARGS)

guarantees: $(STAMP) ## Compare models trained by 1 to 8 workers (10 min; ARGS=--write for the docs)
	@$(BIN)/python benchmarks/guarantees.py $(ARGS)

old-scripts-doc: $(STAMP) ## Write the tables of docs/old-scripts.md anew
	@$(BIN)/python tools/old_scripts_doc.py --write

platform-examples: $(STAMP) ## Write docs/platforms/examples and the table of keys anew
	@$(BIN)/python tools/platform_examples.py --write
	@$(BIN)/python tools/job_file_doc.py --write

strategy-table: $(STAMP) ## What works under each strategy, alone and with drumbeat (10 min; ARGS=--write)
	@$(BIN)/python benchmarks/strategy_table.py $(ARGS)

check: $(STAMP) ## Lint, formatting, types and the direction of imports
	@failed=; \
	$(BIN)/ruff check --quiet $(CHECKED) || failed="$$failed lint"; \
	$(BIN)/ruff format --quiet --check $(CHECKED) || { \
	  $(BIN)/ruff format --check $(CHECKED); failed="$$failed formatting (make format mends it)"; }; \
	$(BIN)/python tools/check_imports.py || failed="$$failed imports"; \
	$(BIN)/pyright --pythonpath $(BIN)/python || failed="$$failed types"; \
	[ -z "$$failed" ] || { echo "Failed:$$failed" >&2; exit 1; }

format: $(STAMP) ## Format the code and mend what the linter can
	@$(BIN)/ruff check --quiet --fix $(CHECKED); $(BIN)/ruff format --quiet $(CHECKED)

lock: ## Write requirements.lock and requirements-jax.lock anew from pyproject.toml
	@$(PYTHON) tools/check_python.py
	@$(PYTHON) -m venv build/lock-venv
	@build/lock-venv/bin/pip install $(PIP_FLAGS) uv
	@build/lock-venv/bin/uv pip compile pyproject.toml --output-file requirements.lock --upgrade \
	  --quiet --universal --python-version 3.10 --extra dev --generate-hashes \
	  --no-emit-index-url --no-emit-find-links --no-annotate --custom-compile-command "make lock"
	@build/lock-venv/bin/uv pip compile --group pyproject.toml:test-jax --upgrade \
	  --constraint requirements.lock --output-file requirements-jax.lock \
	  --quiet --universal --python-version 3.10 --generate-hashes \
	  --no-emit-index-url --no-emit-find-links --no-annotate --custom-compile-command "make lock"
	@! grep -nE '://|^-' requirements.lock requirements-jax.lock || { \
	  echo "requirements.lock names an index; it must hold names, versions and hashes only." >&2; exit 1; }

clean: ## Remove the environments, caches and builds; runs/ stays
	@rm -rf $(VENV) $(OLDEST) $(JAX) build dist .pytest_cache .ruff_cache .hypothesis
	@find $(CHECKED) -name __pycache__ -type d -prune -exec rm -rf {} +
