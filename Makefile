# Every target can be repeated at no cost; `make` alone lists them.
.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.ONESHELL:
MAKEFLAGS += --no-print-directory

PYTHON ?= python3
TORCH_ARGS ?=
FUZZ_SECONDS ?= 600
FUZZ_TARGETS ?=
SOAK_STEPS ?= 100000
JOBS ?= $(shell scripts/jobs.sh)
export PYTHON TORCH_ARGS SKIP_APT

VENV_PYTHON := build/venv/bin/python
SOURCES = $(shell find src include tools python tests examples bench -name '*.[ch]pp' -o -name '*.[ch]' 2>/dev/null)

# A preset is configured anew when the presets changed, or the interpreter that its extension is built for.
configure = for newer in CMakePresets.json build/venv/pyvenv.cfg; do \
	  [ build/$(1)/build.ninja -nt $$newer ] || { cmake --fresh --preset $(1); touch build/$(1)/build.ninja; }; done

.PHONY: help setup build demo test bench bench-h200 format tidy asan ubsan tsan fuzz soak clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9 -]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	echo
	echo "Variables: PYTHON=python3      interpreter for build/venv, 3.11 or newer"
	echo "           TORCH_ARGS='...'    extra pip arguments for torch, e.g. an index or folder with CPU builds of it"
	echo "           JOBS=$(JOBS)              compilers and tests at once"
	echo "           FUZZ_SECONDS=600    seconds for each target of make fuzz"
	echo "           FUZZ_TARGETS=...    targets of make fuzz instead of all: recipe safetensors layout page_loader capi"
	echo "           SOAK_STEPS=100000   edits for each recipe of make soak"
	echo "           SKIP_APT=1          leave Debian packages alone"

setup: ## install what is missing: Debian packages, build/venv
	@scripts/setup.sh

build: setup ## build library, command line, Python package and tests into build/release
	@$(call configure,release)
	cmake --build --preset release --parallel $(JOBS)
	installed=build/release/python-installed
	if [ ! $$installed -nt pyproject.toml ] || [ ! $$installed -nt build/venv/.requirements ]; then
	  cmake --build --preset release --target mpfa_python_develop
	  touch $$installed
	fi

demo: build ## measure the recipes on a real model, some minutes; writes build/demo/report.html
	@$(VENV_PYTHON) -m mpfa.eval.demo

test: build ## run all tests
	@$(VENV_PYTHON) scripts/run_tests.py --jobs $(JOBS)

bench: setup ## time decode, prefill and append; writes build/bench/bench.json
	@pkg-config --exists benchmark || { echo "Google Benchmark is missing; install it: apt-get install libbenchmark-dev" >&2; exit 1; }
	$(call configure,bench)
	cmake --build --preset bench --parallel $(JOBS) --target mpfa_bench
	build/bench/bench/mpfa_bench --benchmark_out=build/bench/bench.json --benchmark_out_format=json

format: ## format the C++ sources with clang-format
	@command -v clang-format >/dev/null || { echo "clang-format is missing; install it: apt-get install clang-format" >&2; exit 1; }
	clang-format -i $(SOURCES)

bench-h200: setup ## time decode and append on a Hopper card (FLASHINFER=folder: beside FlashInfer); writes build/bench/h200
	@$(call configure,bench)
	cmake --build --preset bench --parallel $(JOBS) --target mpfa_bench_h200
	bench/h200/run.sh build/bench/bench build/bench/h200 $(FLASHINFER)
	$(VENV_PYTHON) bench/h200/collect.py build/bench/h200 --out build/bench/h200

tidy: build ## check src, include, tools and tests with clang-tidy
	@command -v run-clang-tidy >/dev/null || { echo "run-clang-tidy is missing; install it: apt-get install clang-tidy" >&2; exit 1; }
	run-clang-tidy -quiet -p build/release -j $(JOBS) '$(CURDIR)/(src|tools|tests)/.*\.cpp$$'

asan ubsan tsan: setup ## C++ tests under one sanitizer
	@$(call configure,$@)
	cmake --build --preset $@ --parallel $(JOBS)
	ctest --preset $@ -j $(JOBS)

fuzz: setup ## fuzz every target for FUZZ_SECONDS (ten minutes)
	@command -v clang++ >/dev/null || { echo "clang++ is missing; install it: apt-get install clang libclang-rt-dev" >&2; exit 1; }
	scripts/fuzz.sh $(FUZZ_SECONDS) $(FUZZ_TARGETS)

soak: build ## SOAK_STEPS random edits of a cache for each recipe, every result against a fresh cache (ten minutes)
	@MPFA_SOAK_STEPS=$(SOAK_STEPS) build/release/tests/mpfa_test_cache --gtest_filter='*Soak*' --gtest_brief=1

clean: ## remove what was built; build/venv and build/models stay
	@shopt -s extglob
	rm -rf build/!(venv|models)
