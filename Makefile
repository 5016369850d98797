# make demo, make test, make test-torch, make hiprtc: each does everything on a fresh machine with Python 3.10 or newer
# (with venv) and make.
#
#   PYTHON  the interpreter that the virtual environment is made of
#   VENV    where that environment is
#   CUDA    which of CUDA's packages: cuda13, cuda12, or none. Left out: those of the driver here, else cuda13, since
#           the compilers run without a driver too.
#   HIP     hip-disassembler, hip, or none: how much of hip-python
#   JOBS    how many processes share the tests
#   HIPRTC  options for `make hiprtc`, such as --suite sid or --mirror http://some.mirror/debian

PYTHON ?= python3
VENV ?= .venv
DRIVER := $(shell nvidia-smi 2>/dev/null | sed -n 's/.*CUDA Version: *\([0-9]*\).*/\1/p')
CUDA ?= $(if $(filter 12,$(DRIVER)),cuda12,cuda13)
HIP ?= hip-disassembler
JOBS ?= 2

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
STAMP := $(VENV)/.$(CUDA)-$(HIP)
DEV_STAMP := $(VENV)/.dev
TORCH_STAMP := $(VENV)/.torch

# The launcher of `make hiprtc`, where that has been and the variable says nothing else. A command line, hence the quotes.
WITH_HIPRTC = if [ -x .hiprtc/python ]; then export PTXRT_HIPRTC_PYTHON="$${PTXRT_HIPRTC_PYTHON-'$(CURDIR)/.hiprtc/python'}"; fi;

.PHONY: demo test test-torch hiprtc lint wheel-test clean

demo: $(STAMP)
	$(WITH_HIPRTC) $(BIN)/ptxrt demo

test: $(STAMP)
	$(WITH_HIPRTC) $(BIN)/python -m pytest -n $(JOBS) --dist worksteal

# Against PyTorch on the CPU, which is large.
test-torch: $(TORCH_STAMP)
	$(BIN)/python -m pytest tests/ops/test_against_torch.py tests/runtime/test_interop.py

# AMD's compiler, from Debian's packages into .hiprtc/, for `make test` and `make demo`. The system is left as it is.
hiprtc: $(STAMP)
	$(BIN)/python tools/fetch_hiprtc.py $(HIPRTC)

lint: $(DEV_STAMP)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

wheel-test: $(STAMP)
	$(BIN)/python -m pytest -m wheel tests/test_wheel.py

clean:
	rm -rf $(VENV) .hiprtc .hiprtc.* build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Where the packages of CUDA or HIP cannot be had (no wheel for this platform, say), ptxrt runs without them, if need be on
# its PTX machine alone: the tests and the demo go on, and say what is missing. The next make tries again, because the
# stamp is not set then.
$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 10) or sys.exit("ptxrt needs Python 3.10 or newer; here it is " + sys.version)'
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet --editable '.[test]'
	@missing=; for extra in $(filter-out none,$(CUDA) $(HIP)); do \
	  echo "installing the packages of $$extra"; \
	  $(PIP) install --quiet --editable ".[$$extra]" || { missing=$$extra; \
	    echo "*** The packages of $$extra cannot be installed here (see above): going on without them." >&2; }; \
	done; [ "$$missing" ] || touch $@

$(TORCH_STAMP): $(STAMP)
	$(PIP) install --quiet --editable '.[torch]'
	@touch $@

$(DEV_STAMP): $(STAMP)
	$(PIP) install --quiet --editable '.[dev]'
	@touch $@
