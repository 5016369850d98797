# make demo, make test, make test-hip, make test-torch, make test-lowest, make test-newest, make hiprtc: each does all on a fresh
# machine with Python 3.10 or newer (with venv) and make.
#
#   PYTHON  the interpreter that the virtual environment is made of
#   VENV    where that environment is
#   CUDA    which of CUDA's packages: cuda13, cuda12, or none. Left out: those of the driver here, else cuda13, since
#           the compilers run without a driver too.
#   HIP     hip-disassembler, hip, or none: how much of hip-python
#   JOBS    how many processes share the tests
#   PIP     what installs, such as 'VIRTUAL_ENV=.venv uv pip'
#   HIPRTC  options for `make hiprtc`, such as --suite sid or --mirror http://some.mirror/debian

PYTHON ?= python3
VENV ?= .venv
DRIVER := $(shell nvidia-smi 2>/dev/null | sed -n 's/.*CUDA Version: *\([0-9]*\).*/\1/p')
CUDA ?= $(if $(filter 12,$(DRIVER)),cuda12,cuda13)
HIP ?= hip-disassembler
JOBS ?= 2

BIN := $(VENV)/bin
PIP ?= $(BIN)/python -m pip --disable-pip-version-check
# Most modules of torch and Sphinx are never imported: Python compiles those that are.
INSTALL := $(PIP) install --quiet --no-compile --editable
STAMP := $(VENV)/.$(CUDA)-$(HIP)
DEV_STAMP := $(VENV)/.dev
TORCH_STAMP := $(VENV)/.torch
DOCS_STAMP := $(VENV)/.docs

# The launcher of `make hiprtc`, where that has been and the variable says nothing else. A command line, hence the quotes.
WITH_HIPRTC = if [ -x .hiprtc/python ]; then export PTXRT_HIPRTC_PYTHON="$${PTXRT_HIPRTC_PYTHON-'$(CURDIR)/.hiprtc/python'}"; fi;

# What test-lowest and test-newest run: what meets Python and NumPy first, less what compiles HIP or C++, or takes seconds.
PART := tests/runtime tests/backends tests/check tests/commands tests/testing/test_plugin.py tests/ops/test_plan.py \
	tests/sim/test_integers.py tests/sim/test_memory.py tests/test_dtypes.py tests/test_errors.py \
	-k 'not hip and not test_parity and not test_headers and not test_source and not test_interrupts and not test_cooperative \
	and not test_cxx_parameters and not test_cold_start and not test_modules and not test_device and not test_events \
	and not test_cache_store and not test_tune and not test_processes'

# Where bytecode is not written, each of the hundreds of processes that tests start compiles ptxrt anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-hip test-torch test-lowest test-newest hiprtc lint docs wheel-test clean

demo: $(STAMP)
	$(WITH_HIPRTC) $(BIN)/ptxrt demo

test: $(STAMP)
	$(WITH_HIPRTC) $(BIN)/python -m pytest -n $(JOBS) --dist worksteal

# AMD's compiler; the kernels in HIP on the CPU, with waves of 32 and of 64, and the machine code that it makes of them: `make
# hiprtc` comes first.
test-hip: $(STAMP)
	$(WITH_HIPRTC) PTXRT_REQUIRE=hip,hiprtc $(BIN)/python -m pytest -n $(JOBS) --dist worksteal -m amd \
	  tests/commands/test_parity.py tests/hip tests/compilers/test_hiprtc.py tests/ops/test_kernel_texts.py  # the longest first

# Against PyTorch on the CPU, which is large.
test-torch: $(TORCH_STAMP)
	$(BIN)/python -m pytest -n $(JOBS) tests/ops/test_against_torch.py tests/runtime/test_interop.py \
	  tests/tools/test_bench_ops_torch.py

# A part of the tests on the oldest Python of this machine that ptxrt runs on, with the lowest versions that
# pyproject.toml allows; and on the newest, with the newest versions.
test-lowest: $(DEV_STAMP)
	$(call test_part,oldest,lowest-direct,cuda12 hip)

test-newest: $(DEV_STAMP)
	$(call test_part,newest,highest,cuda13)

define test_part
	python=$$($(BIN)/python tools/find_python.py $(1)) && $(BIN)/uv venv --quiet --clear --python "$$python" $(VENV)-$(1)
	@install='$(BIN)/uv pip install --quiet --python $(VENV)-$(1) --resolution $(2) -r pyproject.toml --extra test'; \
	$$install $(patsubst %,--extra %,$(3)) || { \
	  echo "*** The packages of $(3) cannot be installed here (see above): going on without them." >&2; $$install; }
	$(BIN)/uv pip list --quiet --python $(VENV)-$(1)
	$(WITH_HIPRTC) PYTHONPATH=$(CURDIR) $(VENV)-$(1)/bin/python -m pytest -n $(JOBS) -p no:cacheprovider $(PART)
endef

# AMD's compiler, from Debian's packages into .hiprtc/, for `make test` and `make demo`. The system is left as it is.
hiprtc: $(STAMP)
	$(BIN)/python tools/fetch_hiprtc.py $(HIPRTC)

lint: $(DEV_STAMP)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

# The documentation as a site, in build/docs. A link within it that leads nowhere is an error.
docs: $(DOCS_STAMP)
	$(BIN)/sphinx-build --fail-on-warning --keep-going --quiet -b html docs build/docs
	@echo "build/docs/index.html"

wheel-test: $(STAMP)
	$(BIN)/python -m pytest -m wheel tests/test_wheel.py

clean:
	rm -rf $(VENV) $(VENV)-oldest $(VENV)-newest .hiprtc .hiprtc.* build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Where the packages of CUDA or HIP cannot be had (no wheel for this platform, say), ptxrt runs without them, if need be on
# its PTX machine alone: the tests and the demo go on, and say what is missing. The next make tries again, because the
# stamp is not set then.
$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 10) or sys.exit("ptxrt needs Python 3.10 or newer; here it is " + sys.version)'
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) '.[test]'
	@missing=; for extra in $(filter-out none,$(CUDA) $(HIP)); do \
	  echo "installing the packages of $$extra"; \
	  $(INSTALL) ".[$$extra]" || { missing=$$extra; \
	    echo "*** The packages of $$extra cannot be installed here (see above): going on without them." >&2; }; \
	done; [ "$$missing" ] || touch $@

$(TORCH_STAMP): $(STAMP)
	$(INSTALL) '.[torch]'
	@touch $@

$(DOCS_STAMP): $(STAMP)
	$(INSTALL) '.[docs]'
	@touch $@

$(DEV_STAMP): $(STAMP)
	$(INSTALL) '.[dev]'
	@touch $@
