#!/usr/bin/env bash
# A worker of a job over several containers: an ssh server that lets in the launcher of the job, and nobody else.
#
#   /run/tfdist/own        this container's own, in memory: the private host key, which nobody else sees
#   /run/tfdist/workers    shared with the launcher, which reads the public host keys here, a file a worker
#   /run/tfdist/launcher   shared by the launcher, which writes its public key there
#
# Where containers share no memory, as in Kubernetes, the keys are given instead of the last two folders:
#
#   HOST_KEY       file with the private host key, the same for all workers
#   LAUNCHER_KEY   file with the public key that may log in
#
# SIGTERM is passed on to the ranks of an elastic job here, which have until the engine's patience is over.
set -euo pipefail

own=/run/tfdist/own
workers=/run/tfdist/workers
options=()

leave() {
  local ranks
  # Those that have the variable; some processes of sshd cannot be looked into.
  mapfile -t ranks < <(grep -lzs ^TFDIST_ELASTIC= /proc/[0-9]*/environ | cut -d / -f 3)
  if ((${#ranks[@]})); then
    kill -TERM "${ranks[@]}" || true
    # Also for their supervisors, which have to tell the launcher.
    while grep -qzs ^OMPI_COMM_WORLD_RANK= /proc/[0-9]*/environ; do
      sleep 0.1
    done
  fi
  rm -f "$workers/$HOSTNAME"
  kill "$sshd"
  wait "$sshd" || true
  exit
}

# Of daemons of MPI that were killed with an earlier start of this container, where /tmp outlives it: a new one with the
# number of one of them, as is likely here, cannot start.
rm -rf /tmp/prted.*

if [[ -n ${HOST_KEY:-} ]]; then
  for name in HOST_KEY LAUNCHER_KEY; do
    if [[ ! -s ${!name:-} ]]; then
      echo "tfdist-worker: $name is '${!name:-}', which is no file with a key; HOST_KEY and LAUNCHER_KEY go together" >&2
      exit 1
    fi
  done
  install -m 0400 "$HOST_KEY" "$own/host_key"
  # Kubernetes mounts a secret read-only at a folder whose mode says that everybody may write to it.
  options=(-o "AuthorizedKeysFile=$LAUNCHER_KEY" -o StrictModes=no)
else
  ssh-keygen -q -t ed25519 -N '' -C "$HOSTNAME" -f "$own/host_key"
  cp "$own/host_key.pub" "$workers/.$HOSTNAME"
  mv "$workers/.$HOSTNAME" "$workers/$HOSTNAME"
fi
trap leave TERM
/usr/sbin/sshd -D -e -f /etc/tfdist/sshd_config "${options[@]}" &
sshd=$!
wait "$sshd"
