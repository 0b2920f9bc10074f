#!/usr/bin/env bash
# Writes plain manifests into FOLDER, from the chart with its defaults and the release `train`. IMAGES are published ones,
# as REGISTRY/NAME:VERSION of NAME:VERSION-cpu. Usage: render.sh FOLDER [IMAGES]
set -euo pipefail

folder=${1:?expected the folder to write into}
options=(train "$(dirname "${BASH_SOURCE[0]}")/chart")
if [[ -n ${2:-} ]]; then
  options+=(--set "image=$2-cpu" --set "dataService.image=$2-data-service")
fi
mkdir -p "$folder"
helm template "${options[@]}" > "$folder/train.yaml"
helm template "${options[@]}" --set train.operator=true > "$folder/mpijob.yaml"
helm template "${options[@]}" --set train.trainer=true > "$folder/trainjob.yaml"
helm template "${options[@]}" --set train.enabled=false --set dataService.enabled=true > "$folder/data-service.yaml"
