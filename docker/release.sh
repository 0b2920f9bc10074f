#!/usr/bin/env bash
# Builds, tests and publishes the images of a release, from the tag that is checked out.
# Usage: docker/release.sh [--dry-run] REGISTRY/NAME, as in: docker/release.sh ghcr.io/example/tfdist
#
# The tag must be v plus the version in pyproject.toml; the images are NAME:VERSION-cpu, -cuda and -data-service.
# A published version never changes. Nothing is published before all images are built and all tests have passed.
# With --dry-run everything is checked, but the commands are only printed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# The released product's own command: `make` installs it there.
export PATH="$PWD/.venv/bin:$PATH"
targets=(cpu cuda data-service)
dry=""

fail() {
  echo "release.sh: $*" >&2
  exit 1
}

step() {
  printf '+ %s\n' "$*"
  if [[ -z $dry ]]; then "$@"; fi
}

# registry NAME: its registry host, by Docker's rules, as Docker names it in its login file.
registry() {
  local host=${1%%/*}
  if [[ $1 == */* && ($host == *[.:]* || $host == localhost) ]]; then
    printf '%s\n' "$host"
  else
    echo https://index.docker.io/v1/
  fi
}

# logged_in HOST: whether `docker login` has stored credentials for it.
logged_in() {
  python3 - "$1" "${DOCKER_CONFIG:-$HOME/.docker}/config.json" << 'END'
import json
import pathlib
import sys

host, path = sys.argv[1], pathlib.Path(sys.argv[2])
told = json.loads(path.read_text()) if path.exists() else {}
sys.exit(host not in {**told.get("auths", {}), **told.get("credHelpers", {})})
END
}

if [[ ${1:-} == --dry-run ]]; then
  dry=1
  shift
fi
[[ $# -eq 1 && $1 =~ ^[a-z0-9][a-z0-9._:-]*(/[a-z0-9._-]+)*$ ]] ||
  fail "received '$*', expected the target of the images, as in: docker/release.sh ghcr.io/example/tfdist"
name=$1

changed=$(git status --porcelain)
[[ -z $changed ]] || fail "the working tree differs from the tag; commit or remove: $(tr -s '\n ' ' ' <<< "$changed")"
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' pyproject.toml)
tags=$(git tag --points-at HEAD)
grep -qxF "v$version" <<< "$tags" ||
  fail "the version in pyproject.toml is $version, but HEAD has the tags '${tags//$'\n'/ }'; expected v$version among them"
host=$(registry "$name")
logged_in "$host" || fail "no login for $host; log in first: docker login ${host#https://index.docker.io/v1/}"
for target in "${targets[@]}"; do
  if docker manifest inspect "$name:$version-$target" > /dev/null 2>&1; then
    fail "$name:$version-$target is already published, and a published version never changes; raise the version in pyproject.toml"
  fi
done

step make test-images test-cuda-image
step make manifests "IMAGES=$name:$version"
for target in "${targets[@]}"; do
  step tfdist image build --target "$target" --tag "$name:$version-$target"
done
for target in "${targets[@]}"; do
  step tfdist image build --target "$target" --tag "$name:$version-$target" --push
done
echo "attach to the release v$version: build/kubernetes/train.yaml, mpijob.yaml, trainjob.yaml, data-service.yaml, and docker/kubernetes/keys.sh"
