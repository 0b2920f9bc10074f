#!/usr/bin/env bash
# Takes docker's plugin buildx, for `make test-images` on Debian 12, which has none, out of the package of a newer Debian;
# that of Debian 13 is too old for compose. It installs nothing. Elsewhere the tests name the package that is missing.
# Usage: buildx_plugin.sh FILE
set -euo pipefail

if ! grep -qsx VERSION_CODENAME=bookworm /etc/os-release || docker buildx version > /dev/null 2>&1; then
  exit
fi
echo "== taking buildx from a newer Debian"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir "$folder"/{lists,parts}
mirror=$(apt-get indextargets --format "\$(REPO_URI)" 'Identifier: Packages' 'Component: main' 'Release: bookworm')
keys=/usr/share/keyrings/debian-archive-keyring.gpg
echo "deb [signed-by=$keys] $mirror forky main" > "$folder/sources"
apt=(apt-get -qq -o APT::Sandbox::User=root -o "Dir::Cache=$folder" -o "Dir::State::Lists=$folder/lists")
apt+=(-o "Dir::Etc::SourceList=$folder/sources" -o "Dir::Etc::SourceParts=$folder/parts")
"${apt[@]}" update
(cd "$folder" && "${apt[@]}" download docker-buildx && dpkg-deb -x docker-buildx_*.deb .)
install "$folder/usr/libexec/docker/cli-plugins/docker-buildx" "$1"
