#!/usr/bin/env bash
# Prints a Secret with the key of one job, a new one on each call. Nothing stays on disk.
# Usage: docker/kubernetes/keys.sh [--ssh] NAME | kubectl apply -f -
#
#   job_key        of workers and launcher, which prove to each other that they have it
#
# With --ssh, for jobs with MPI (train.ssh=true), instead of it:
#
#   host_key       of the workers; proves their identity
#   launcher_key   of the launcher; the only key the workers accept
#
# The manifests give each side its own private key and the other's public one.
set -euo pipefail

given="$*"
ssh=
if [[ ${1:-} == --ssh ]]; then
  ssh=true
  shift
fi
if [[ $# -ne 1 || ! $1 =~ ^[a-z0-9]([-a-z0-9]*[a-z0-9])?$ ]]; then
  echo "keys.sh: received '$given', expected the name of the Secret, as in: keys.sh train-keys | kubectl apply -f -" >&2
  exit 2
fi

umask 077
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [[ -n $ssh ]]; then
  files=(host_key host_key.pub launcher_key launcher_key.pub)
  for key in host_key launcher_key; do
    ssh-keygen -q -t ed25519 -N '' -C "$1" -f "$folder/$key"
  done
else
  files=(job_key)
  od -An -N32 -tx1 /dev/urandom | tr -d ' \n' > "$folder/job_key"
fi
cat << SECRET
apiVersion: v1
kind: Secret
metadata:
  name: $1
type: Opaque
data:
SECRET
for file in "${files[@]}"; do
  printf '  %s: %s\n' "$file" "$(base64 < "$folder/$file" | tr -d '\n')"
done
