#!/usr/bin/env bash
# A worker of a job over several containers: an ssh server that lets in the launcher of the job, and nobody else.
#
#   /run/tfdist/own        this container's own, in memory: the private host key, which nobody else sees
#   /run/tfdist/workers    shared with the launcher, which reads the public host keys here, a file an address
#   /run/tfdist/launcher   shared by the launcher, which writes its public key there
#
# Where containers share no memory, as in Kubernetes, the keys are given instead of the last two folders:
#
#   HOST_KEY       file with the private host key, the same for all workers
#   LAUNCHER_KEY   file with the public key that may log in
set -euo pipefail

own=/run/tfdist/own
workers=/run/tfdist/workers
options=()

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
  for address in $(hostname -I); do
    cp "$own/host_key.pub" "$workers/.$address"
    mv "$workers/.$address" "$workers/$address"
  done
fi
exec /usr/sbin/sshd -D -e -f /etc/tfdist/sshd_config "${options[@]}"
