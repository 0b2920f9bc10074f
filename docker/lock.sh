#!/usr/bin/env bash
# Writes docker/lock/*.txt: every package of the images, and of what lists them, with its version and the hashes of its wheels.
# Usage: make lock, after a change of versions.env. `uv` asks the index that UV_DEFAULT_INDEX names, else PyPI.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

# That of BASE_IMAGE in versions.env.
python=3.11
# As `tfdist image build --target cuda` gives it.
export CUDA_TOOLKIT_VERSION=12.9.1

mkdir -p lock
for kind in cpu cuda sbom; do
  {
    echo "# What an image installs if it is of the lines that begin with #:, on x86-64. Written by \`make lock\`."
    echo "#: python $python"
    ./requirements.sh "$kind" | sed 's/^/#: /'
    # manylinux_2_28 is older than both Debian 12 and what any of the packages asks for.
    ./requirements.sh "$kind" | uv pip compile --quiet --generate-hashes --no-header --no-annotate \
      --only-binary :all: --python-version "$python" --python-platform x86_64-manylinux_2_28 -
  } > "lock/$kind.new"
  mv "lock/$kind.new" "lock/$kind.txt"
done
