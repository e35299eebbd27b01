# Two commands do everything on a fresh Debian 12: `make demo` and `make test`. `make help` lists the rest.
# Debian packages that are missing are installed (as root, or by sudo); Python packages go into .venv. What is already
# there is not touched again, so a second run needs no network.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := build
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

BUILD ?= build
VENV ?= .venv
TORCH ?= 2.11.0
PYTHON ?= python3
JOBS ?= $(shell nproc)
CMAKE_ARGS ?=
CTEST_ARGS ?=
PYTEST_ARGS ?=

# nvcc is used where there is one, also off the PATH.
NVCC := $(or $(shell command -v nvcc),$(wildcard /usr/local/cuda/bin/nvcc))
ifneq ($(NVCC),)
export CUDACXX ?= $(NVCC)
endif

APT_BUILD := g++ cmake ninja-build libhwy-dev libcli11-dev nlohmann-json3-dev libgtest-dev libbenchmark-dev \
  librandom123-dev
APT_PYTHON := python3 python3-venv python3-dev
APT_LINT := git clang clang-tidy clang-format libomp-dev

# $(call apt,PACKAGES): installs those that are missing. Elsewhere than on Debian, says what to install by hand.
define apt
@command -v dpkg-query >/dev/null || { echo "not a Debian system: please install the likes of: $(1)"; exit 0; }; \
missing=(); for p in $(1); do \
  dpkg-query -W -f='$${db:Status-Status}' $$p 2>/dev/null | grep -qx installed || missing+=($$p); done; \
if [ $${#missing[@]} -gt 0 ]; then \
  echo "installing $${missing[*]}"; sudo=; [ "$$(id -u)" = 0 ] || sudo=sudo; export DEBIAN_FRONTEND=noninteractive; \
  $$sudo apt-get -o DPkg::Lock::Timeout=600 update -qq; \
  $$sudo apt-get -o DPkg::Lock::Timeout=600 install -y -qq --no-install-recommends "$${missing[@]}" >/dev/null; fi
endef

.PHONY: help configure build all test test-torch torch-here demo bench install lint format clean setup-cpp setup-python setup-lint

help:  ## list of targets
	@grep -E '^[a-z-]+:.*## ' Makefile | sed -E 's/^([a-z-]+):.*## /\1|/' | sort | \
	  while IFS='|' read -r name what; do printf '  make %-12s %s\n' "$$name" "$$what"; done

# --- Set-up ---------------------------------------------------------------------------------------------------------
setup-cpp:
	$(call apt,$(APT_BUILD))
setup-python:
	$(call apt,$(APT_PYTHON))
	@$(MAKE) -s $(VENV)/.installed
setup-lint:
	$(call apt,$(APT_LINT))

# The stamp comes last, so a step that failed is done again.
$(VENV)/.installed: python/requirements.txt
	@echo "Python packages into $(VENV)"
	@[ -x $(VENV)/bin/pip ] || { rm -rf $(VENV); $(PYTHON) -m venv $(VENV); }
	@$(VENV)/bin/pip install -q --disable-pip-version-check -r python/requirements.txt
	@touch $@

# --- Build ----------------------------------------------------------------------------------------------------------
CONFIGURE := -G Ninja -DMASKLESS_BUILD_EXAMPLES=ON -DMASKLESS_BUILD_BENCH=ON -DMASKLESS_BUILD_PYTHON=ON \
  -DPython_EXECUTABLE=$(abspath $(VENV)/bin/python) $(CMAKE_ARGS)

# Configured again only if these options change: files and dependencies are CMake's own to watch.
configure: setup-cpp setup-python
	@[ "$$(cat $(BUILD)/.configured 2>/dev/null)" = "$(CONFIGURE)" ] || { \
	  cmake -S . -B $(BUILD) $(CONFIGURE); echo "$(CONFIGURE)" >$(BUILD)/.configured; }

build: configure  ## the command line program, build/maskless
	@cmake --build $(BUILD) -j $(JOBS) --target maskless_cli

all: configure  ## everything: library, program, tests, examples, benchmarks, Python extension
	@cmake --build $(BUILD) -j $(JOBS)

# --- Use ------------------------------------------------------------------------------------------------------------
export PYTHONPATH := $(abspath $(BUILD)/python)
export MASKLESS_CLI := $(abspath $(BUILD)/maskless)

demo: configure  ## the guided tour, on real images; leaves build/demo/index.html
	@cmake --build $(BUILD) -j $(JOBS) --target maskless_cli maskless_python
	@$(BUILD)/maskless demo
	@$(VENV)/bin/python examples/tour.py --out $(BUILD)/demo

test: all  ## C++ and Python tests (on the GPU too where there is one)
	@ctest --test-dir $(BUILD) -j $(JOBS) --output-on-failure --progress $(CTEST_ARGS)
	@[ ! -d python/tests ] || $(VENV)/bin/python -m pytest -q $(PYTEST_ARGS)

# torch has an environment of its own, on top of the other, so that `make test` stays light. TORCH_HEADERS is the version
# whose headers the operations are compiled with, if it is to be another than the one that runs them.
TORCH_HEADERS ?= $(TORCH)
TORCH_VENV := .venv-torch-$(TORCH)
TORCH_INCLUDE = $(wildcard $(abspath .venv-torch-$(TORCH_HEADERS))/lib/python3.*/site-packages/torch/include)

$(TORCH_VENV)/.installed: $(VENV)/.installed
	@echo "torch $(TORCH) into $(TORCH_VENV)"
	@[ -x $(TORCH_VENV)/bin/pip ] || { rm -rf $(TORCH_VENV); $(VENV)/bin/python -m venv $(TORCH_VENV); }
	@echo $(abspath $(VENV))/lib/python3.*/site-packages >$$(echo $(TORCH_VENV)/lib/python3.*/site-packages)/maskless.pth
	@$(TORCH_VENV)/bin/pip install -q --disable-pip-version-check torch==$(TORCH)
	@touch $@

test-torch: configure  ## installs torch (TORCH=2.11.0) and runs the tests of its front
	@$(MAKE) -s .venv-torch-$(TORCH_HEADERS)/.installed TORCH=$(TORCH_HEADERS)
	@$(MAKE) -s $(TORCH_VENV)/.installed
	@$(MAKE) -s torch-here
torch-here:
	@cmake -S . -B $(BUILD) $(CONFIGURE) -DMASKLESS_TORCH_INCLUDE=$(TORCH_INCLUDE) -DMASKLESS_TORCH=ON >/dev/null
	@cmake --build $(BUILD) -j $(JOBS) --target maskless_python maskless_cli
	@$(TORCH_VENV)/bin/python -m pytest -q python/tests/torch python/tests/test_triton.py $(PYTEST_ARGS)

bench: all  ## benchmarks of this machine, peers in the same run
	@for bench in $(BUILD)/bench/*_bench; do $$bench; done
	@$(VENV)/bin/python bench/numpy_dropout.py --size 24

install: all  ## the C++ library and program (CMAKE_INSTALL_PREFIX by CMAKE_ARGS)
	@cmake --install $(BUILD)

# --- Keep in order --------------------------------------------------------------------------------------------------
CXX_FILES = $$(git ls-files -co --exclude-standard '*.h' '*.cc' '*.cu' '*.cuh')

lint: setup-lint all  ## formats, include rules, headers alone, clang-tidy, types
	@clang-format --dry-run -Werror $(CXX_FILES)
	@$(VENV)/bin/ruff check -q . && $(VENV)/bin/ruff format -q --check .
	@python3 tests/check_includes.py
	@python3 tests/check_words.py
	@JOBS=$(JOBS) tests/headers_alone.sh
	@JOBS=$(JOBS) tests/tidy.sh $(BUILD)

format: setup-lint setup-python  ## write the formats that lint checks
	@clang-format -i $(CXX_FILES)
	@$(VENV)/bin/ruff check -q --fix . && $(VENV)/bin/ruff format -q .

clean:  ## remove the build; leaves the Python packages (.venv)
	@rm -rf $(BUILD)
