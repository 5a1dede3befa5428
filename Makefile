PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
MODEL ?= smollm2
PROMPT ?= Tell me the capital of France.

.PHONY: demo test check format bench docs clean

demo: $(STAMP)  ## fetch a real model, import it, ask it, stream the answer
	@$(BIN)/tokenmill pull $(MODEL)
	@$(BIN)/tokenmill generate $(MODEL) "$(PROMPT)" --temperature 0 --max-tokens 64 --stats

test: $(STAMP)  ## all tests, with the small real model
	@$(BIN)/tokenmill pull $(MODEL)
	@$(BIN)/python -m pytest -q

check: $(STAMP)  ## style, types, layers
	@$(BIN)/ruff check src tests bench
	@$(BIN)/ruff format --check src tests bench
	@$(BIN)/mypy
	@$(BIN)/python -m pytest -q tests/test_layers.py

format: $(STAMP)
	@$(BIN)/ruff check --fix src tests bench
	@$(BIN)/ruff format src tests bench

bench: $(STAMP)  ## every benchmark's quick targets
	@for script in bench/perplexity.py bench/compare_genai.py; do $(BIN)/python $$script --quick || exit $$?; done

docs: $(STAMP)  ## run the commands that the documents show
	@$(BIN)/python -m pytest -q tests/e2e/test_documents.py

clean:
	rm -rf $(VENV)

$(STAMP): pyproject.toml requirements/lock.txt
	@test -d $(VENV) || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements/lock.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	@touch $@
