# Everything a newcomer needs, without questions. Each target can be run again cheaply.
#   make demo    fetch SmolLM2-135M-Instruct, convert it to LiteRT int8, verify it, answer one prompt
#   make test    lint, types and the whole test suite
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c

BIN := .venv/bin
MODEL := smollm2-135m-instruct
BUNDLE := bundles/$(MODEL)-litert-int8

.PHONY: help venv demo test test-fast lint bench clean

help:
	@sed -n 's/^#   //p' Makefile

venv:
	@bash .ci/venv convert,gguf,mlx,onnx,speech,batch,test

demo: venv
	$(BIN)/toolkit models pull $(MODEL)
	@if [ -e $(BUNDLE)/manifest.json ]; then echo "$(BUNDLE) is there already, not converting again"; \
	else echo "$(BIN)/convert $(MODEL) --to litert --recipe int8 --out bundles"; \
	  $(BIN)/convert $(MODEL) --to litert --recipe int8 --out bundles; fi
	$(BIN)/toolkit verify $(BUNDLE)
	$(BIN)/toolkit run $(BUNDLE) "What is the capital of France?"

lint: venv
	$(BIN)/ruff check .
	$(BIN)/mypy

test: lint
	$(BIN)/python -m pytest

#   make test-fast   the tests that need no real weights
test-fast: venv
	$(BIN)/python -m pytest -m "not real"

#   make bench   print every figure of benchmarks/ again on this machine
bench: venv
	$(BIN)/python -m benchmarks

clean:
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
