#!/usr/bin/env bash
# Builds, tests and publishes the images of a release, from the tag that is checked out.
# Usage: docker/release.sh [--dry-run] REGISTRY/NAME, as in: docker/release.sh ghcr.io/example/tfdist
#
# The tag must be v and the version in pyproject.toml; the images are called NAME:VERSION-cpu, -cuda and -data-service.
# A version that is published stays as it is. Nothing is published before all images are built and all tests have passed.
# With --dry-run all is checked, and what would be done is only printed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# The command of the product that is released: `make` installs it there.
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

# registry NAME: the host in it, by the rule of Docker, under the name by which Docker keeps its login.
registry() {
  local host=${1%%/*}
  if [[ $1 == */* && ($host == *[.:]* || $host == localhost) ]]; then
    printf '%s\n' "$host"
  else
    echo https://index.docker.io/v1/
  fi
}

# logged_in HOST: whether `docker login` has left something for it.
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
  fail "got '$*', expected where the images go, as in: docker/release.sh ghcr.io/example/tfdist"
name=$1

changed=$(git status --porcelain)
[[ -z $changed ]] || fail "the working tree is not what the tag says; commit or remove: $(tr -s '\n ' ' ' <<< "$changed")"
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' pyproject.toml)
tags=$(git tag --points-at HEAD)
grep -qxF "v$version" <<< "$tags" ||
  fail "the version in pyproject.toml is $version, and HEAD has the tags '${tags//$'\n'/ }'; expected v$version among them"
host=$(registry "$name")
logged_in "$host" || fail "no login for $host; log in first: docker login ${host#https://index.docker.io/v1/}"
for target in "${targets[@]}"; do
  if docker manifest inspect "$name:$version-$target" > /dev/null 2>&1; then
    fail "$name:$version-$target is published already; a version stays as it is: raise it in pyproject.toml"
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
echo "attach to the release v$version: build/kubernetes/train.yaml, mpijob.yaml, data-service.yaml, and docker/kubernetes/keys.sh"
