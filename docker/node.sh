#!/usr/bin/env bash
# A node of a job whose nodes all get the same command, as those of Kubeflow Trainer do: the first one starts the ranks on
# all of them and shows their output, the others serve it. Each exits with the status of the job.
# Usage: node.sh COMMAND [ARGUMENTS...]
#
#   JOB_KEY              file with the key that all nodes have
#   WORKER_TIMEOUT       seconds within which all nodes must be there (600)
#   LAUNCH_OPTIONS       more options for tfdistrun
#
# From Kubeflow Trainer, by the `torch` policy of its runtime:
#
#   PET_NNODES           number of nodes
#   PET_NPROC_PER_NODE   ranks on each; auto: one a GPU, or a core where there is none
#   PET_NODE_RANK        0 for the first
#   PET_MASTER_ADDR      name of the first
#   PET_MASTER_PORT      a port of it
set -euo pipefail

fail() {
  echo "tfdist-node: $*" >&2
  exit 1
}

[[ $# -gt 0 ]] || fail "no command; write it after the name, as in: tfdist-node python train.py"
for name in PET_NNODES PET_NPROC_PER_NODE PET_NODE_RANK PET_MASTER_ADDR PET_MASTER_PORT; do
  [[ -n ${!name:-} ]] || fail "$name is not set; it comes from a runtime of Kubeflow Trainer with 'mlPolicy: {torch: {}}'"
done
[[ -s ${JOB_KEY:-} ]] || fail "JOB_KEY is '${JOB_KEY:-}', which is not a key file"
first=$PET_MASTER_ADDR
# The first node knows its own name at once; that of its Service may come to the DNS later.
[[ $PET_NODE_RANK != 0 ]] || first=$HOSTNAME
options=(--nodes "$PET_NNODES" --rendezvous "$first:$PET_MASTER_PORT" --key-file "$JOB_KEY")
options+=(--start-timeout "${WORKER_TIMEOUT:-600}")
[[ $PET_NPROC_PER_NODE == auto ]] || options+=(--slots-per-host "$PET_NPROC_PER_NODE")
read -r -d "" -a more <<< "${LAUNCH_OPTIONS:-}" || true
exec tfdistrun "${options[@]}" "${more[@]}" "$@"
