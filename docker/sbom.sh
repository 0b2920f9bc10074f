#!/usr/bin/env bash
# Writes the list of the packages of a Python environment, with their licences, as CycloneDX (JSON).
# Usage: sbom.sh PYTHON FILE, with cyclonedx-py of the package cyclonedx-bom on PATH
#
# The same environment gives the same file. Packages of Debian are not in it: dpkg-query --show lists those.
set -euo pipefail

[[ $# -eq 2 ]] || { echo "sbom.sh: received '$*', expected the Python of an environment and a file" >&2; exit 2; }
# A test holds the output against the schema; here that would take longer than all else.
cyclonedx-py environment --no-validate --output-reproducible --spec-version 1.6 --output-file "$2" "$1"
# From the image itself it is read by users other than root.
chmod 0644 "$2"
