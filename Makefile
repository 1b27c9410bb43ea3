# Everything runs in .venv, which the first command makes. PYTHON chooses the interpreter it is made with.
PYTHON ?= python3
BIN := .venv/bin
# Modules are compiled when they are first imported: most of what is installed never is.
INSTALL := $(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt
# Tests of clusters and browsers mostly wait: three workers keep two cores busy. A worker that was killed for a test that
# hangs is not replaced: its test would hang again.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 3 --dist loadfile --no-loadscope-reorder \
	--max-worker-restart 0
export HF_HUB_DISABLE_TELEMETRY := 1
export TOKENIZERS_PARALLELISM := false
# Where it is set, every process compiles all that it imports again, and importing the libraries takes half a minute.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-install test-oldest lint checks docs notebooks release table bench torture clean

demo: .venv/ready
	mkdir -p demo
	$(BIN)/whymatch explain "The coffee is not good." "This is bad coffee." --words \
		--html demo/coffee.html --png demo/coffee.png --json demo/coffee.json
	@echo
	@echo "The score is the sum of the table's cells. Written: demo/coffee.html, .png and .json."
	@echo "Next:"
	@printf '  %-58s%s\n' 'open demo/coffee.html' 'the same to point at; it needs no network' \
		'$(BIN)/whymatch explain "your text" "another" --words' 'your own pair' \
		'$(BIN)/whymatch serve' 'the explorer, on http://127.0.0.1:8000/' \
		'docs/start.md, examples/whymatch.ipynb' 'from Python; make docs builds the whole site'

test: .venv/ready
	$(PYTEST)

# The wheel in a fresh environment, without extras: what works, and what the missing extras say.
test-install: .venv/ready
	$(BIN)/python tests/clean_install.py

# The parts of the suite that depend most on the libraries below, on the oldest releases of them that are supported.
test-oldest:
	$(PYTHON) -m venv .venv-oldest
	.venv-oldest/bin/python -m pip install --quiet --constraint constraints-oldest.txt --editable '.[model,plot,corpus,train,dev]'
	$(PYTEST:$(BIN)%=.venv-oldest/bin%) \
		tests/test_encoder.py tests/test_cut.py tests/test_kinds.py tests/test_method.py tests/test_integrate.py \
		tests/test_runner.py tests/test_explainer.py tests/test_architectures.py tests/test_adjusted.py

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Everything but the tests, one after the other: CI runs it beside them.
checks: .venv/ready
	$(MAKE) lint
	$(MAKE) docs

# The site, in build/site: every page, link and public name is checked, and a warning fails it.
docs: .venv/ready
	$(BIN)/mkdocs build --quiet --strict
	@echo "written: build/site/index.html"

# Runs the notebooks and keeps their outputs, which the site shows.
notebooks: .venv/ready
	$(INSTALL) --editable '.[qdrant]'
	$(BIN)/python docs/gallery/run.py

# The wheel and the source archive, checked as an index would check them.
release: .venv/ready
	$(INSTALL) --editable '.[release]'
	rm -rf dist
	$(BIN)/python -m build --quiet
	$(BIN)/twine check --strict dist/*

table: .venv/ready
	WHYMATCH_TABLE=write $(BIN)/python -m pytest -q tests/test_table.py

bench: .venv/ready
	$(INSTALL) --editable '.[bench]'
	$(BIN)/python benchmarks/peers.py
	$(BIN)/python benchmarks/floor.py
	$(BIN)/python benchmarks/deep.py
	$(BIN)/python benchmarks/tables.py

# Hostile texts, files, clients and models: about 15 minutes. WHYMATCH_TORTURE scales the number of trials.
torture: .venv/ready
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q --tb=short --results torture/results.json torture; \
		code=$$?; $(BIN)/python torture/report.py; exit $$code

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(INSTALL) --editable '.[all,dev,docs]'
	touch $@

clean:
	rm -rf .venv .venv-oldest demo build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
