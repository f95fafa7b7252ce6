# `make demo` and `make test` install what they need into .venv; `make help` lists all targets.
PYTHON ?= python3
VENV   := .venv
VISION := .venv-vision
OBJECTS := .venv-objects
BIN    := $(VENV)/bin
PIP     = $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

# Trials run in parallel, so each gets one thread.
export OMP_NUM_THREADS ?= 1

# Keep compiled sources: tests start many processes, and pytest would rewrite every assertion in each.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test results results-rerun test-slow test-grown test-faults test-slurm test-learning test-browser test-spaces test-gpu test-vision test-objects mutants check audit format bench-losses bench-metrics bench-training \
	bench-gpu bench-orchestration docs clean help

help:
	@echo "make demo            install, run the sweep sec_rho on the embedded data, print where the report is"
	@echo "make test            install, run the test suite"
	@echo "make check           check format, lint, types and unused code"
	@echo "make format          format the code, fix what ruff can fix"
	@echo "make docs            generate the pages that are made from the code"
	@echo "make audit           look up known vulnerabilities of the pinned versions (needs the network)"
	@echo "make test-slow       run the slow tests"
	@echo "make test-grown      run the fast unit tests in a copy of the tree with every listing of CONTRIBUTING.md"
	@echo "make test-faults     kill real processes and nodes, write docs/reliability.md"
	@echo "make test-slurm      run sweeps as jobs of a real SLURM on this machine, add rows to docs/reliability.md"
	@echo "make test-learning   test what training learns, with each of torch's CPU kernels, one and two threads"
	@echo "make mutants         change the code in 300 places, one at a time, and count the changes that unit tests catch"
	@echo "make test-browser    test the report in headless Chromium (installs it where apt can)"
	@echo "make test-spaces     run each study for a few steps, to its report"
	@echo "make test-gpu        run the tests that need a CUDA device"
	@echo "make test-vision     compare backbones with timm, torchvision and pretrainedmodels, in a separate environment"
	@echo "make test-objects    test the rendered data set, in a separate environment (98 MB of pybullet)"
	@echo "make results         run the studies that changed and write docs/results"
	@echo "make results-rerun   run the studies of the papers' claims again with other seeds"
	@echo "make bench-losses bench-metrics bench-training bench-orchestration   print speed ratios against named peers"
	@echo "make bench-gpu       print images/s and metrics on a CUDA device beside a bare loop and the model alone"

demo: $(VENV)/.demo
	$(BIN)/tune-dml sweep sec_rho --dataset glyphs --tune regularizer.rho=0.01,0.5,1 --seeds 5 --name demo

test: $(VENV)/.dev
	$(BIN)/python -m pytest --numprocesses 2 --no-loadscope-reorder

test-slow: $(VENV)/.dev
	$(BIN)/python -m pytest -m slow

test-grown: $(VENV)/.dev
	$(BIN)/python -m pytest -m "slow or not slow" tests/unit/project/test_contributing.py

mutants: $(VENV)/.dev
	$(BIN)/python tests/mutants.py

# Each test appends a row; the page is made from these rows.
test-faults: $(VENV)/.dev
	@ls /usr/lib/postgresql/*/bin/postgres > /dev/null 2>&1 || apt-get install -y -qq postgresql > /dev/null 2>&1 || \
	echo "PostgreSQL is not installed and apt cannot install it: its test is skipped."
	rm -f build/faults.jsonl && mkdir -p build
	TUNE_DML_FAULTS=$(CURDIR)/build/faults.jsonl $(BIN)/python -m pytest -m "slow or not slow" tests/faults
	$(BIN)/python docs/reliability.py build/faults.jsonl

# Virtual nodes of this machine, without munge; needs root.
test-slurm: $(VENV)/.dev
	@command -v slurmctld slurmd sbatch srun > /dev/null || apt-get install -y -qq slurmctld slurmd slurm-client \
	slurm-wlm-basic-plugins > /dev/null 2>&1 || { echo "SLURM is not installed and apt cannot install it."; exit 1; }
	@command -v ch-run > /dev/null || apt-get install -y -qq charliecloud > /dev/null 2>&1 || \
	echo "Charliecloud is not installed and apt cannot install it: the tests in a container are skipped."
	rm -f build/slurm.jsonl && mkdir -p build
	TUNE_DML_FAULTS=$(CURDIR)/build/slurm.jsonl $(BIN)/python -m pytest -m slurm tests/slurm
	$(BIN)/python docs/reliability.py --add build/slurm.jsonl

# Kernels and thread counts round differently; verdicts on learning must not depend on rounding.
test-learning: $(VENV)/.dev
	for kernels in default avx2 native; do for threads in 1 2; do \
		echo "== kernels $$kernels, threads $$threads"; \
		if [ $$kernels = native ]; then unset ATEN_CPU_CAPABILITY; else export ATEN_CPU_CAPABILITY=$$kernels; fi; \
		OMP_NUM_THREADS=$$threads $(BIN)/python -m pytest -m learning -rP || exit 1; \
	done; done

test-browser: $(VENV)/.dev
	@for name in chromium chromium-browser google-chrome; do command -v $$name > /dev/null && exit 0; done; \
	echo "No chromium, chromium-browser or google-chrome on the PATH: trying apt-get install chromium."; \
	{ apt-get install -y -qq chromium > /dev/null 2>&1 && command -v chromium > /dev/null; } || \
	{ echo "Chromium could not be installed (no apt, no rights or no network). No browser test ran."; exit 1; }
	$(BIN)/python -m pytest -m browser

test-spaces: $(VENV)/.dev
	$(BIN)/python -m pytest -m spaces

test-gpu: $(VENV)/.dev
	$(BIN)/python -m pytest -m gpu -rs

test-vision: $(VISION)/.vision
	$(VISION)/bin/python -m pytest -m vision

test-objects: $(OBJECTS)/.objects
	$(OBJECTS)/bin/python -m pytest -m objects -rs

check: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python tests/unused_code.py

# In a separate environment: pip-audit is not a dependency.
audit: constraints.txt
	$(PYTHON) -m venv build/audit
	build/audit/bin/python -m pip install --quiet --disable-pip-version-check pip-audit
	build/audit/bin/pip-audit --requirement constraints.txt --no-deps --disable-pip --strict

format: $(VENV)/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench-losses: $(VENV)/.dev
	$(BIN)/python benchmarks/losses.py
	$(BIN)/python benchmarks/proxies.py

bench-metrics: $(VENV)/.dev
	$(BIN)/python benchmarks/metrics.py

bench-training: $(VENV)/.dev
	$(BIN)/python benchmarks/training.py

bench-gpu: $(VENV)/.dev
	$(BIN)/python benchmarks/gpu.py

bench-orchestration: $(VENV)/.dev
	$(BIN)/python benchmarks/orchestration.py

docs: $(VENV)/.dev
	$(BIN)/python docs/generate.py
	$(BIN)/python docs/generate_schema.py
	$(BIN)/python docs/generate_studies.py
	$(BIN)/python docs/generate_fidelity.py
	$(BIN)/python docs/generate_architecture.py
	$(BIN)/python docs/generate_commands.py

# Runs the studies whose plan is no longer that of docs/results, one after another: some hours on two cores, resumable.
results: $(VENV)/.dev
	$(BIN)/python docs/run_results.py run build/studies

# Runs the studies of the papers' claims from scratch with other seeds: about three hours on two cores, resumable.
results-rerun: $(VENV)/.dev
	$(BIN)/python docs/run_results.py rerun build/studies-rerun
	$(BIN)/python docs/generate_studies.py

clean:
	rm -rf $(VENV) $(VISION) $(OBJECTS) build *.egg-info .pytest_cache .mypy_cache .ruff_cache

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip

$(VENV)/.demo: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e '.[cpu,demo]'
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e '.[dev]'
	@touch $@

# The tests read one file of pretrainedmodels, which needs none of its dependencies.
$(VISION)/.vision: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VISION)
	$(VISION)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[vision,dev]'
	$(VISION)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps pretrainedmodels==0.7.4
	@touch $@

$(OBJECTS)/.objects: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(OBJECTS)
	$(OBJECTS)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[objects,dev]'
	@touch $@
