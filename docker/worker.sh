#!/usr/bin/env bash
# A worker of a job on several containers: an ssh server that accepts only the launcher of the job.
#
#   /run/tfdist/own        private to this container, in memory: the private host key
#   /run/tfdist/workers    shared with the launcher, which reads the public host keys here, one file per worker
#   /run/tfdist/launcher   shared by the launcher, which writes its public key there
#
# If containers share no memory, as in Kubernetes, the keys are passed instead of the last two folders:
#
#   HOST_KEY       file with the private host key, the same for all workers
#   LAUNCHER_KEY   file with the public key that may log in
#
# SIGTERM is passed on to the ranks of an elastic job here, which have until the container engine's timeout.
set -euo pipefail

own=/run/tfdist/own
workers=/run/tfdist/workers
options=()

leave() {
  local ranks
  # Processes that have the variable; the environment of some sshd processes cannot be read.
  mapfile -t ranks < <(grep -lzs ^TFDIST_ELASTIC= /proc/[0-9]*/environ | cut -d / -f 3)
  if ((${#ranks[@]})); then
    kill -TERM "${ranks[@]}" || true
    # Also wait for their supervisors, which must report to the launcher: processes of the agent that it has forked.
    while (($(grep -lzs agent/summoned.py /proc/[0-9]*/cmdline | wc -l) > 1)); do
      sleep 0.1
    done
  fi
  rm -f "$workers/$HOSTNAME"
  kill "$sshd"
  wait "$sshd" || true
  exit
}

# Files of MPI daemons that were killed with an earlier start of this container, if /tmp survives: a new daemon with the
# same process id, which is likely here, could not start.
rm -rf /tmp/prted.*

if [[ -n ${HOST_KEY:-} ]]; then
  for name in HOST_KEY LAUNCHER_KEY; do
    if [[ ! -s ${!name:-} ]]; then
      echo "tfdist-worker: $name is '${!name:-}', which is not a key file; set both HOST_KEY and LAUNCHER_KEY" >&2
      exit 1
    fi
  done
  install -m 0400 "$HOST_KEY" "$own/host_key"
  # Kubernetes mounts a secret read-only in a folder whose mode is world-writable.
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
