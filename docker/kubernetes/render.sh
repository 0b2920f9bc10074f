#!/usr/bin/env bash
# Writes the plain manifests beside this file, or into FOLDER, from the chart: all with the chart's defaults and the
# release `train`. A test compares them, so they cannot drift apart. Usage: render.sh [FOLDER]
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
folder=${1:-$here}

# render FILE HEADER OPTIONS...: one manifest.
render() {
  local file=$1 header=$2
  shift 2
  {
    printf '# %s\n# Written by render.sh from the chart; README.md says how it is used.\n' "$header"
    helm template train "$here/chart" "$@" | sed '/^$/d'
  } > "$folder/.$file"
  mv "$folder/.$file" "$folder/$file"
}

render train.yaml 'Trains on two pods: a StatefulSet of workers that run the ranks, and a Job that starts them by ssh.'
render mpijob.yaml "The same job for Kubeflow's MPI operator." --set train.operator=true
render data-service.yaml 'A data service: a dispatcher, and workers that prepare data.' \
  --set train.enabled=false --set dataService.enabled=true
