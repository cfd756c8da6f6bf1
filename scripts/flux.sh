#!/bin/sh
# Fetches InfluxData's Flux compiler, by which tests check every Flux query that closloop has:
#
#   scripts/flux.sh
#
# It goes to ~/.cache/closloop/flux, or to $CLOSLOOP_FLUX. It is InfluxData's, under the MIT License (LICENSE
# beside it), and no part of closloop. Needs curl and a network that reaches the npm registry; running it takes
# Node.js.
set -eu

folder=${CLOSLOOP_FLUX:-$HOME/.cache/closloop/flux}
# of https://github.com/influxdata/flux-lsp
package=https://registry.npmjs.org/@influxdata/flux-lsp-node/-/flux-lsp-node-0.8.40.tgz
digest=e16077f567c9224d7e9f2ef32cb17103f41ea29af8c17eb645a05237c16583a9

made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT
curl --fail --silent --show-error --location --output "$made/package.tgz" "$package"
echo "$digest  $made/package.tgz" | sha256sum --check --quiet
tar -xzf "$made/package.tgz" -C "$made"
mkdir -p "$folder"
cp "$made"/package/* "$folder"
echo "in $folder; tests/telemetry/test_flux.py uses it"
