# make demo, make test, make test-torch: each does everything on a fresh machine with Python 3.10 or newer (with venv) and make.
#
#   PYTHON  the interpreter that the virtual environment is made of
#   VENV    where that environment is
#   CUDA    which of CUDA's packages: cuda13, cuda12, or none. Left out: those of the driver here, else cuda13, since
#           the compilers run without a driver too.

PYTHON ?= python3
VENV ?= .venv
DRIVER := $(shell nvidia-smi 2>/dev/null | sed -n 's/.*CUDA Version: *\([0-9]*\).*/\1/p')
CUDA ?= $(if $(filter 12,$(DRIVER)),cuda12,cuda13)

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
STAMP := $(VENV)/.$(CUDA)
DEV_STAMP := $(VENV)/.dev
TORCH_STAMP := $(VENV)/.torch

.PHONY: demo test test-torch lint wheel-test clean

demo: $(STAMP)
	$(BIN)/ptxrt demo

test: $(STAMP)
	$(BIN)/python -m pytest

# Against PyTorch on the CPU, which is large.
test-torch: $(TORCH_STAMP)
	$(BIN)/python -m pytest tests/test_against_torch.py

lint: $(DEV_STAMP)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

wheel-test: $(STAMP)
	$(BIN)/python -m pytest -m wheel tests/test_wheel.py

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Where CUDA's packages cannot be had (no wheel for this platform, say), ptxrt runs on its PTX machine alone: the tests
# and the demo go on, and say what is missing. The next make tries again, because the stamp is not set then.
$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 10) or sys.exit("ptxrt needs Python 3.10 or newer; here it is " + sys.version)'
	$(PYTHON) -m venv $(VENV)
ifeq ($(CUDA),none)
	$(PIP) install --quiet --editable '.[test]'
	@touch $@
else
	$(PIP) install --quiet --editable '.[test,$(CUDA)]' && touch $@ || { \
	  echo "*** The packages of $(CUDA) cannot be installed here (see above): going on without them, on sim alone." >&2; \
	  $(PIP) install --quiet --editable '.[test]'; }
endif

$(TORCH_STAMP): $(STAMP)
	$(PIP) install --quiet --editable '.[torch]'
	@touch $@

$(DEV_STAMP): $(STAMP)
	$(PIP) install --quiet --editable '.[dev]'
	@touch $@
