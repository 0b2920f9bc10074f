#!/usr/bin/env bash
# Prints a Secret with the ssh keys of one job, new ones on each call. Nothing stays on disk.
# Usage: docker/kubernetes/keys.sh NAME | kubectl apply -f -
#
#   host_key       of the workers; proves their identity
#   launcher_key   of the launcher; the only key the workers accept
#
# The manifests give each side its own private key and the other's public one.
set -euo pipefail

if [[ $# -ne 1 || ! $1 =~ ^[a-z0-9]([-a-z0-9]*[a-z0-9])?$ ]]; then
  echo "keys.sh: received '$*', expected the name of the Secret, as in: keys.sh train-keys | kubectl apply -f -" >&2
  exit 2
fi

umask 077
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
for key in host_key launcher_key; do
  ssh-keygen -q -t ed25519 -N '' -C "$1" -f "$folder/$key"
done
cat << SECRET
apiVersion: v1
kind: Secret
metadata:
  name: $1
type: Opaque
data:
SECRET
for file in host_key host_key.pub launcher_key launcher_key.pub; do
  printf '  %s: %s\n' "$file" "$(base64 < "$folder/$file" | tr -d '\n')"
done
