# The two commands of the README: `make demo` and `make test`. Each makes .venv with the tested versions first.
PYTHON ?= $(shell for p in python3 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12))' 2>/dev/null && echo $$p && break; done)
BIN := .venv/bin

.PHONY: demo test test-slow test-gpu install

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

install: .venv/installed

.venv/installed: pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "ShiftBed needs Python 3.11 or 3.12; none was found. Name one: make PYTHON=/path/to/python3.11"; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[test]'
	touch $@
