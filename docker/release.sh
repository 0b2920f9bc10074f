#!/usr/bin/env bash
# Builds, tests and publishes a release from the tag that is checked out: wheels, images, lists of their packages, manifests.
# Usage: docker/release.sh [--dry-run] [--only STEP] REGISTRY/NAME [-- OPTION...]
# As in: docker/release.sh ghcr.io/example/tfdist
#
#   wheels    builds the wheels for x86-64 and ARM, and uses the first under each Python and TensorFlow (root, debootstrap)
#   test      builds the images and tests them
#   images    builds the images with their final names, and the manifests
#   publish   pushes the images
#   sign      signs what was published, with cosign and the identity of who runs it; only with --only sign
#
# Without --only it does the first four. What belongs to the release is then in build/release/VERSION.
# The tag must be v plus the version in pyproject.toml; the images are NAME:VERSION-cpu, -cuda and -data-service.
# A published version never changes. Nothing is published before all images are built and all tests have passed.
# With --dry-run everything is checked, but the commands are only printed. A registry on localhost needs no login.
# Options after -- are for `tfdist image build`, such as --pip-config and --ca where a proxy is in the way.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# The released product's own command: `make` installs it there.
export PATH="$PWD/.venv/bin:$PATH"
targets=(cpu cuda data-service)
steps=(wheels test images publish)
dry=""

fail() {
  echo "release.sh: $*" >&2
  exit 1
}

step() {
  printf '+ %s\n' "$*"
  if [[ -z $dry ]]; then "$@"; fi
}

# keep FILE COMMAND...: what a command prints, into a file of the release.
keep() {
  local file=$release/$1
  shift
  printf '+ %s > %s\n' "$*" "$file"
  if [[ -z $dry ]]; then "$@" > "$file"; fi
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

make_wheels() {
  step make test-wheel
  step make wheels MACHINE=aarch64
  step cp dist/"tfdist-$version"-*.whl "$release"
}

run_test() {
  step make test-images test-cuda-image
}

make_images() {
  local target
  step make manifests "IMAGES=$name:$version"
  step cp build/kubernetes/{train,mpijob,trainjob,data-service}.yaml docker/kubernetes/keys.sh "$release"
  step tfdist image build "${build[@]}"
  for target in "${targets[@]}"; do
    keep "sbom-$target.cdx.json" docker run --rm --entrypoint cat "$name:$version-$target" /opt/tfdist/sbom.cdx.json
  done
}

# The digests are known when the registry has the images.
publish() {
  local target
  step tfdist image build "${build[@]}" --push
  for target in "${targets[@]}"; do
    keep "image-$target.txt" digest "$name:$version-$target"
  done
  keep SHA256SUMS sums
}

digest() {
  docker image inspect --format '{{range .RepoDigests}}{{println .}}{{end}}' "$1" | grep -F "${1%:*}@"
}

sums() {
  (cd "$release" && sha256sum -- [!S]*)
}

sign() {
  local target image
  for target in "${targets[@]}"; do
    [[ -s $release/image-$target.txt ]] || fail "$release has no image-$target.txt; publish first: --only publish"
    image=$(< "$release/image-$target.txt")
    step cosign sign --yes "$image"
    step cosign attest --yes --type cyclonedx --predicate "$release/sbom-$target.cdx.json" "$image"
  done
  step cosign sign-blob --yes --bundle "$release/SHA256SUMS.sigstore.json" "$release/SHA256SUMS"
}

while [[ ${1:-} == --* ]]; do
  case $1 in
    --dry-run) dry=1 ;;
    --only)
      [[ ${2:-} =~ ^(wheels|test|images|publish|sign)$ ]] ||
        fail "received --only '${2:-}', expected one of: wheels, test, images, publish, sign"
      steps=("$2")
      shift
      ;;
    *) fail "received '$1', expected --dry-run or --only STEP" ;;
  esac
  shift
done
[[ ($# -eq 1 || ${2:-} == --) && $1 =~ ^[a-z0-9][a-z0-9._:-]*(/[a-z0-9._-]+)*$ ]] ||
  fail "received '$*', expected the target of the images, as in: docker/release.sh ghcr.io/example/tfdist"
name=$1
options=("${@:3}")

changed=$(git status --porcelain)
[[ -z $changed ]] || fail "the working tree differs from the tag; commit or remove: $(tr -s '\n ' ' ' <<< "$changed")"
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' pyproject.toml)
tags=$(git tag --points-at HEAD)
grep -qxF "v$version" <<< "$tags" ||
  fail "the version in pyproject.toml is $version, but HEAD has the tags '${tags//$'\n'/ }'; expected v$version among them"
host=$(registry "$name")
[[ $host == localhost:* ]] || logged_in "$host" ||
  fail "no login for $host; log in first: docker login ${host#https://index.docker.io/v1/}"
if [[ ${steps[0]} != sign ]]; then
  plain=()
  [[ $host != localhost:* ]] || plain=(--insecure) # no TLS
  for target in "${targets[@]}"; do
    if docker manifest inspect "${plain[@]}" "$name:$version-$target" > /dev/null 2>&1; then
      fail "$name:$version-$target is already published, and a published version never changes; raise the version in pyproject.toml"
    fi
  done
fi

release=build/release/$version
build=("${options[@]}" --tag "$name:$version-{target}")
for target in "${targets[@]}"; do
  build+=(--target "$target")
done
[[ -n $dry ]] || mkdir -p "$release"
for each in "${steps[@]}"; do
  case $each in
    wheels) make_wheels ;;
    test) run_test ;;
    images) make_images ;;
    publish) publish ;;
    sign) sign ;;
  esac
done
echo "what belongs to the release v$version: $release"
