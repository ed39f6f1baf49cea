# Everything happens in a virtual environment of this folder, made on first use.
#   make run      generate text with the default model       make test    run the tests
#   make chat     talk with a small chat model, which is downloaded (89 MiB)
#   make build    compile the kernels ahead                  make lint    ruff, mypy, sizes of rooms
#   make bench    this model's speed                         make peers   kvarn beside llama.cpp
#   make longctx  decoding and reading after up to a million tokens
#   make test-arm    what kernels compute on ARM, in emulation (x86-64, Debian or Ubuntu)
#   make test-cuda   run the tests of the GPU kernels, in Triton's interpreter, without a GPU
#   make gpu-check   the same on a GPU, compute-sanitizer, and the CPU beside the GPU
#   make gpu-bench MODEL=FILE   the last of these alone
#   make gpu-wheels FOR=3.12   packages for `gpu-check OFFLINE=FOLDER`, without a network
#   make libkvarn   build/libkvarn: a shared library for programs in C and others
#   make libkvarn-bundle   build/libkvarn-bundle: the same with Python, packages and kernels
#   make wheel    dist/: the sdist, the wheel for any machine, one with kernels for x86 (an hour;
#                           MACHINE=aarch64: for ARM)
#   make docs     docs/reference/python.md, from the docstrings
#   make evals    what the default model recalls of long contexts, by attention method
#   make results TEXT=FOLDER   what the papers claim, measured, into lab/RESULTS.md; goes on
#                           where it was interrupted (MINUTES=N: for so long; PROCESSES=N)
#   make mini TEXT=FOLDER   train the default model and its encoders anew (needs torch);
#                           SHAPE=llama: the second model, with rope in all layers; SHAPE=gqa:
#                           a third, whose query heads share KV heads, grown from the first

PYTHON ?= python3
VENV ?= .venv
WORKERS ?= 2
SHAPE ?= cohere2
# Tokens of the contexts that encoders learn from, no more than the model read at a time.
LEARN_AT = $(if $(filter llama,$(SHAPE)),4096,16384)
PROMPT ?= It was a bright cold morning, and
BIN := $(VENV)/bin

.PHONY: run chat test test-cuda coverage lint build bench peers longctx evals results mini libkvarn libkvarn-bundle wheel docs clean

$(VENV)/.ready: pyproject.toml setup.py
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "kvarn needs Python 3.11 or newer, this is " + sys.version.split()[0])'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -e .
	touch $@

$(VENV)/.ready-test: $(VENV)/.ready
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[test,lint]'
	touch $@

run: $(VENV)/.ready
	$(BIN)/kvarn run -p "$(PROMPT)" --stats

chat: $(VENV)/.ready
	$(BIN)/kvarn chat smollm2

build: $(VENV)/.ready
	$(BIN)/kvarn build

bench: $(VENV)/.ready
	$(BIN)/kvarn bench

# The peer, built from its source for this machine (needs a C++ compiler and cmake; minutes).
$(VENV)/.ready-peers: $(VENV)/.ready
	$(BIN)/pip install --quiet --no-binary llama-cpp-python llama-cpp-python==0.3.36
	touch $@

peers: $(VENV)/.ready-peers
	$(BIN)/python -m lab.peers

longctx: $(VENV)/.ready-peers
	$(BIN)/python -m lab.longctx

evals: $(VENV)/.ready
	$(BIN)/kvarn eval --task needle,kv,chains,two-hop --length 4096,16384 --method full,topk,topk:index=flat,hash --budget 2%,6.25%

results: $(VENV)/.ready
	@test -n "$(TEXT)" || { echo "say where the texts are: make results TEXT=FOLDER"; exit 2; }
	$(BIN)/python -m lab.results run "$(TEXT)" $(if $(MINUTES),--minutes $(MINUTES)) $(if $(PROCESSES),--processes $(PROCESSES))

mini: $(VENV)/.ready
	@test -n "$(TEXT)" || { echo "say where the texts are: make mini TEXT=FOLDER"; exit 2; }
	$(BIN)/pip install --quiet -e '.[train]'
	$(BIN)/python -m lab.mini.train "$(TEXT)" --shape $(SHAPE) --out build/mini-$(SHAPE)
	$(BIN)/python -m lab.mini.export build/mini-$(SHAPE) build/mini-$(SHAPE)/model.gguf $(if $(filter gqa,$(SHAPE)),--name kvarn-mini-gqa)
	$(BIN)/python -m lab.mini.texts.reading "$(TEXT)" build/mini-$(SHAPE)/reading.txt --kind notes --chars 2.4e6
	$(BIN)/kvarn learn build/mini-$(SHAPE)/model.gguf --text build/mini-$(SHAPE)/reading.txt --bits 64 --length $(LEARN_AT) --steps 3
	$(BIN)/kvarn convert build/mini-$(SHAPE)/model.gguf build/kvarn-mini-$(SHAPE).gguf --embed-hash

$(VENV)/.ready-lib: $(VENV)/.ready
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[lib]'
	touch $@

libkvarn: $(VENV)/.ready-lib
	$(BIN)/python -m kvarn.runtime.capi --out build/libkvarn

libkvarn-bundle: $(VENV)/.ready-lib
	$(BIN)/python -m kvarn.runtime.capi --bundle build/libkvarn-bundle

$(VENV)/.ready-wheel: $(VENV)/.ready
	$(BIN)/pip install --quiet --disable-pip-version-check 'setuptools>=77'
	touch $@

wheel: $(VENV)/.ready-wheel
	$(BIN)/python -m lab.wheels dist $(if $(MACHINE),--machine $(MACHINE))

# Tests start hundreds of processes, which would compile kvarn's sources anew if Python might not keep
# what it made of them. NumPy's matrices are small here: threads for them wait more than they compute.
QUICK = PYTHONDONTWRITEBYTECODE= OPENBLAS_NUM_THREADS=1
test: $(VENV)/.ready-test
	$(QUICK) $(BIN)/python -m pytest -q -n $(WORKERS) -m "not slow and not gpu"

# Kernels for GPUs need no GPU to be tested: an environment of their own, with PyTorch's build for CPUs.
# PyPI has only the one for GPUs, which works too but takes gigabytes: name PyTorch's own index there,
#     make test-cuda TORCH_INDEX=https://download.pytorch.org/whl/cpu
# Versions are exact, since any newer one for GPUs would win, and what a kernel needs of a GPU is told by
# Triton's compiler.
TORCH ?= torch==2.13.0
TRITON ?= triton==3.7.1
TORCH_INDEX ?=
VENV_CUDA ?= .venv-cuda
$(VENV_CUDA)/.ready: pyproject.toml setup.py
	$(PYTHON) -m venv $(VENV_CUDA)
	$(VENV_CUDA)/bin/pip install --quiet --disable-pip-version-check --no-deps '$(TORCH)' $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX))
	$(VENV_CUDA)/bin/pip install --quiet --disable-pip-version-check -e '.[cuda,test]' '$(TRITON)'
	touch $@

test-cuda: $(VENV_CUDA)/.ready
	$(VENV_CUDA)/bin/python -m pytest -q -n $(WORKERS) -m "not slow and not gpu" tests/cuda_ops

# kvarn on ARM under qemu-user, with dot products alone (Cortex-A76) and with i8mm: packs, ids of
# the default model by type of weights, method and KV type, and the tests of what runs kernels:
# tests/ops, and of tests/jit dot products, memory and the loader of machine code (`lab/arm`).
# An ARM Python is downloaded into .arm. Kernels are compiled outside the emulator. The first time
# takes hours, since each CPU has kernels of its own; STEPS="packs tokens" runs a part.
STEPS ?=
.PHONY: test-arm
test-arm: $(VENV)/.ready-test
	$(BIN)/python -m lab.arm $(STEPS)

# For machines with a GPU. All that is found goes to build/gpu-report.md.
# Without a network, kvarn's packages come from the wheels of `gpu-wheels`, made elsewhere for the
# machine's Python, and PyTorch and Triton are those that its Python has:
#     make gpu-wheels FOR=3.12; make gpu-check OFFLINE=build/gpu-wheels
VENV_GPU ?= .venv-gpu
MODEL ?= runtime/loading/kvarn-mini.gguf
OFFLINE ?=
FOR ?= 3.12
GPU_WHEELS ?= build/gpu-wheels
GPU_TESTS = 'pytest>=8' 'setuptools>=77'
PIP_GPU = $(VENV_GPU)/bin/python -m pip install --quiet --disable-pip-version-check
.PHONY: gpu-check gpu-bench gpu-wheels
ifeq ($(OFFLINE),)
$(VENV_GPU)/.ready: pyproject.toml setup.py
	$(PYTHON) -m venv $(VENV_GPU)
	$(PIP_GPU) -e '.[cuda]' $(GPU_TESTS)
	touch $@
else
$(VENV_GPU)/.ready: pyproject.toml setup.py
	$(PYTHON) -c 'import torch, triton'
	$(PYTHON) -m venv --system-site-packages $(VENV_GPU)
	$(PYTHON) -c 'import site; print(*site.getsitepackages(), sep="\n")' \
	  > "$$($(VENV_GPU)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/outer.pth"
	$(PIP_GPU) --no-index --find-links '$(OFFLINE)' $(GPU_TESTS) wheel
	$(PIP_GPU) --no-index --find-links '$(OFFLINE)' --no-build-isolation -e .
	touch $@
endif

gpu-check: $(VENV_GPU)/.ready
	$(VENV_GPU)/bin/python -m lab.gpu.report --model '$(MODEL)'

gpu-bench: $(VENV_GPU)/.ready
	$(VENV_GPU)/bin/python -m lab.gpu.report bench --model '$(MODEL)'

gpu-wheels: $(VENV)/.ready
	$(BIN)/pip download --quiet --disable-pip-version-check --dest '$(GPU_WHEELS)' \
	  --only-binary :all: --python-version $(FOR) --platform manylinux_2_28_x86_64 \
	  --platform manylinux_2_27_x86_64 --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 \
	  $$($(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["dependencies"])') \
	  $(GPU_TESTS) wheel

# With an empty cache of kernels: what emits their code runs only when they are compiled.
coverage: $(VENV)/.ready-test
	KVARN_CACHE=$$(mktemp -d) $(QUICK) $(BIN)/python -m pytest -q -n $(WORKERS) -m "not slow and not gpu" --cov=kvarn --cov-report=term:skip-covered

# mypy needs a folder with the package's name around it; `lab` is found as it stands.
lint: $(VENV)/.ready-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	mkdir -p .lint && ln -sfn .. .lint/kvarn
	MYPYPATH=.lint $(BIN)/mypy -p kvarn -p lab
	$(BIN)/python tests/room_sizes.py

docs: $(VENV)/.ready
	$(BIN)/python -m lab.api_pages

clean:
	rm -rf $(VENV) $(VENV_CUDA) $(VENV_GPU) .arm .lint build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage
