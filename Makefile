# make run      set up and show the privacy of the paper's three protocols, with a picture
# make test     set up and run the whole test suite, the linter and the type checker
# make wheel    build the package into dist
# make release  make test, then make wheel, and say what is left to do by hand

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Peers among the benchmarks need older versions than the tests do.
PEERS := .venv-bench
# One CPU build of PyTorch that every test machine can install; the package itself only sets a floor.
TORCH ?= torch==2.13.0

.PHONY: run test bench wheel release clean

run: $(VENV)/.run
	$(BIN)/shoal demo --out out

# The type checker needs Flower, and so Python 3.11; ruff holds the syntax to the oldest version everywhere.
test: $(VENV)/.test $(VENV)/.nginx $(VENV)/.chromium
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -c 'import sys; sys.exit(sys.version_info >= (3, 11))' || $(BIN)/mypy
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist loadgroup

bench: $(PEERS)/.bench
	for name in any_crowd rdp_speed accountant_speed tight_speed tight_vs_pld_accounting sampling_speed flower_throughput; do \
		OMP_NUM_THREADS=1 $(PEERS)/bin/python benchmarks/$$name.py --markdown benchmarks/results/$$name.md || exit 1; \
	done

# A build folder that is left over would add its old files to the wheel.
wheel: $(VENV)/.venv
	rm -rf build dist
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist .
	rm -rf build

release: test wheel
	@echo 'Built and tested:' dist/*.whl
	@echo 'Now: the date into CHANGELOG.md, the version into CITATION.cff, git tag, and upload dist/* (twine upload).'

$(VENV)/.venv:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	touch $@

$(VENV)/.run: $(VENV)/.venv pyproject.toml
	$(BIN)/python -m pip install --quiet --editable '.[plot]'
	touch $@

$(VENV)/.test: $(VENV)/.venv pyproject.toml
	$(BIN)/python -m pip install --quiet '$(TORCH)'
	$(BIN)/python -m pip install --quiet --editable '.[test]'
	touch $@

# The proxy of a deployment is tested with a real nginx; where it cannot be installed, that test says so and is skipped.
$(VENV)/.nginx: $(VENV)/.venv
	PATH="$$PATH:/usr/sbin"; command -v nginx >/dev/null || { command -v apt-get >/dev/null && { \
		DEBIAN_FRONTEND=noninteractive apt-get install -y -qq nginx-light >/dev/null 2>&1 || { apt-get update -qq \
		&& DEBIAN_FRONTEND=noninteractive apt-get install -y -qq nginx-light >/dev/null 2>&1; }; }; } \
		|| echo 'nginx could not be installed: one test will be skipped'
	touch $@

# The page is tested in a real browser; where it cannot be installed, those tests say so and are skipped.
$(VENV)/.chromium: $(VENV)/.venv
	command -v chromium >/dev/null || command -v google-chrome >/dev/null || { command -v apt-get >/dev/null && { \
		DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium >/dev/null 2>&1 || { apt-get update -qq \
		&& DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium >/dev/null 2>&1; }; }; } \
		|| echo 'chromium could not be installed: the tests in the browser will be skipped'
	touch $@

$(PEERS)/.bench: pyproject.toml
	$(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python -m pip install --quiet --editable '.[bench,flower]'
	touch $@

clean:
	rm -rf $(VENV) $(PEERS) build dist out
