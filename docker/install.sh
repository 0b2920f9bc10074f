#!/usr/bin/env bash
# Installs the packages of an image. With hashes, from lock/KIND.txt, if that is of the same requirements and the same
# Python; else by the versions of requirements.sh alone, as for other releases, and where UNLOCKED is not empty.
# Usage: install.sh cpu|cuda|sbom FILE, into which it writes the requirements
set -euo pipefail

folder=$(dirname "${BASH_SOURCE[0]}")
"$folder/requirements.sh" "$1" > "$2"
here=$(python3 -c 'import sys; print("python %d.%d" % sys.version_info[:2])' && cat "$2")
if [[ -z ${UNLOCKED:-} && $(uname -m) == x86_64 && $(sed -n 's/^#: //p' "$folder/lock/$1.txt") == "$here" ]]; then
  exec pip install --require-hashes --requirement "$folder/lock/$1.txt"
fi
echo "install.sh: not from lock/$1.txt, which is of other versions or not wanted; dependencies are the newest that fit" >&2
exec pip install --requirement "$2"
