# One command for each thing that a newcomer wants. Everything lands in .venv* here.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# A CPU build of PyTorch is enough for every test; set TORCH= to take what the extra asks for.
TORCH ?= torch==2.13.0

# pytest's workers. They wait for containers and browsers most of the time, each on its own.
WORKERS ?= 2

.PHONY: demo test test-local test-trl test-verl test-areal test-ray test-vllm test-gradient test-slow test-mini test-agents test-interchange test-trackers lint format docs bench bench-smoke release clean

demo: $(VENV)/.demo  ## Real SWE tasks from collection to export, without a model key.
	@if docker version >/dev/null 2>&1; then scripts/base-image.sh; fi || true
	$(BIN)/trajgym demo

test: $(VENV)/.dev system  ## The whole suite: Docker and embedded sandboxes included.
	$(BIN)/python -m pytest $(if $(filter-out 0 1,$(WORKERS)),-n $(WORKERS) --dist worksteal)

test-local: .venv-local/.ready  ## A real 135M model on this CPU, token-exact, also for agents; tiny vision models; encoders; examples/dense.
	.venv-local/bin/python -m pytest tests/rollout/test_local.py tests/server/test_local.py tests/rollout/test_vision.py tests/search/test_encoders.py tests/dense -m local

test-slow: $(VENV)/.dev system  ## What takes minutes: recipes made again, releases end to end.
	$(BIN)/python -m pytest -m slow

test-mini:  ## mini-swe-agent, unmodified, in our sandboxes.
	PYTHON='$(PYTHON)' scripts/test-mini-swe-agent.sh

test-agents:  ## Agents from the package index, unmodified, through the recording proxy.
	PYTHON='$(PYTHON)' scripts/test-agents.sh

test-interchange:  ## Foreign formats, with the packages that they come from.
	PYTHON='$(PYTHON)' scripts/test-interchange.sh

test-trackers:  ## MLflow, TensorBoard, Trackio and W&B, each read back with its own reader.
	PYTHON='$(PYTHON)' scripts/test-trackers.sh

test-trl:  ## TRL's own trainers, on this CPU.
	TORCH='$(TORCH)' PYTHON='$(PYTHON)' scripts/test-trl.sh

test-verl:  ## verl's own workers, trainers and estimators, on this CPU.
	PYTHON=$(PYTHON) TORCH='$(TORCH)' scripts/test-verl.sh

test-areal:  ## AReaL's own executor, proxy and actor, on this CPU.
	PYTHON=$(PYTHON) TORCH='$(TORCH)' scripts/test-areal.sh

test-ray: system  ## The fleet on real Ray clusters of this machine, whose nodes and actors are killed.
	PYTHON='$(PYTHON)' scripts/test-ray.sh

test-vllm:  ## The engine over vLLM in the same process, with the real vLLM on a CPU.
	PYTHON='$(PYTHON)' scripts/test-vllm.sh

test-gradient:  ## One gradient: TRL's, verl's and AReaL's losses on the same sessions.
	PYTHON=$(PYTHON) TORCH='$(TORCH)' scripts/test-gradient.sh

lint: $(VENV)/.dev  ## Style, types (strict), and the import contract.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.dev
	$(BIN)/python benchmarks/bench_session.py
	$(BIN)/python benchmarks/bench_rows.py
	$(BIN)/python benchmarks/bench_import.py
	$(BIN)/python benchmarks/bench_export.py
	$(BIN)/python benchmarks/bench_sandbox.py
	$(BIN)/python benchmarks/bench_gui.py
	$(BIN)/python benchmarks/bench_rewards.py
	$(BIN)/python benchmarks/bench_server.py

bench-smoke: $(VENV)/.dev  ## Every benchmark in a small size: it starts and ends, no more.
	$(BIN)/python benchmarks/smoke.py

docs: $(VENV)/.docs  ## The documentation site, in build/site; any warning is an error.
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

release: $(VENV)/.dev  ## Build the archives in dist/ and check them; uploads nothing.
	PYTHON=$(BIN)/python scripts/release.sh

.PHONY: system
system:  ## Packages, Docker engine and base image, where we may install them.
	scripts/setup-system.sh

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: pyproject.toml | $(VENV)/bin/python
	$(BIN)/pip install --quiet --editable '.[data]'
	touch $@

$(VENV)/.dev: pyproject.toml | $(VENV)/bin/python
	$(BIN)/pip install --quiet --editable '.[dev]'
	touch $@ $(VENV)/.demo

$(VENV)/.docs: pyproject.toml | $(VENV)/bin/python
	$(BIN)/pip install --quiet --editable '.[docs]'
	touch $@

.venv-local/.ready: pyproject.toml Makefile
	$(PYTHON) -m venv .venv-local
	$(if $(TORCH),.venv-local/bin/pip install --quiet '$(TORCH)')
	.venv-local/bin/pip install --quiet --editable '.[test,local,search-dense]' 'smolagents[openai]>=1.26'
	touch $@

clean:
	rm -rf .venv .venv-* build dist runs *.egg-info
