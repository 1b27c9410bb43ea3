# Everything runs in .venv, which the first command makes. PYTHON chooses the interpreter it is made with.
PYTHON ?= python3
BIN := .venv/bin
export HF_HUB_DISABLE_TELEMETRY := 1
export TOKENIZERS_PARALLELISM := false

.PHONY: demo test lint table bench clean

demo: .venv/ready
	mkdir -p demo
	$(BIN)/whymatch explain "The coffee is not good." "This is bad coffee." --words \
		--html demo/coffee.html --png demo/coffee.png --json demo/coffee.json
	@echo "written: demo/coffee.html demo/coffee.png demo/coffee.json"

test: .venv/ready
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses auto --maxprocesses 4 --dist loadfile

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

table: .venv/ready
	WHYMATCH_TABLE=write $(BIN)/python -m pytest -q tests/test_table.py

bench: .venv/ready
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[bench]'
	$(BIN)/python benchmarks/peers.py
	$(BIN)/python benchmarks/floor.py
	$(BIN)/python benchmarks/tables.py

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[model,web,train,pos,ray,dev]'
	touch $@

clean:
	rm -rf .venv demo build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
