# The two commands of the README: `make demo` and `make test`. Each makes .venv with the tested versions first.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(not (3, 11, 4) <= sys.version_info < (3, 14))' 2>/dev/null && echo $$p && break; done)
BIN := .venv/bin

.PHONY: demo test test-slow test-gpu test-browser install

demo: install
	$(BIN)/shiftbed demo

test: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest -n 2

test-slow: install
	$(BIN)/pytest -m slow

test-gpu: install
	$(BIN)/pytest -m gpu

# The page in a real browser; without one, and without the right to install it, the tests say that they were skipped.
test-browser: install
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[test,browser]'
	command -v chromium || (apt-get update --quiet && apt-get install --quiet --yes chromium) || true
	$(BIN)/pytest -m browser tests/browser

install: .venv/installed

.venv/installed: pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "ShiftBed needs Python 3.11.4 to 3.13; none was found. Name one: make PYTHON=/path/to/python3.11"; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[test]'
	touch $@
