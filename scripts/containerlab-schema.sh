#!/bin/sh
# Fetches containerlab's JSON schema, against which tests check the topology files that are exported:
#
#   scripts/containerlab-schema.sh
#
# It goes to ~/.cache/closloop/containerlab, or to $CLOSLOOP_CONTAINERLAB. It is Nokia's and others',
# under the BSD 3-Clause License (LICENSE beside it), and no part of closloop.
# Needs git and a network that reaches GitHub.
set -eu

repository=${CONTAINERLAB:-https://github.com/srl-labs/containerlab}
folder=${CLOSLOOP_CONTAINERLAB:-$HOME/.cache/closloop/containerlab}
# 0.79, of August 2026
commit=39ff2b7ccce20f3c4610fcbd1fc030582f4499c1
digest=51a7025041d90fcded90911d4947773794464ccd903f01c03d5b2ff988f58d02

checkout=$(mktemp -d)
trap 'rm -rf "$checkout"' EXIT
git init --quiet "$checkout"
# only the files that are shown are transferred
git -C "$checkout" remote add origin "$repository"
git -C "$checkout" config remote.origin.promisor true
git -C "$checkout" fetch --quiet --depth 1 --filter blob:none origin "$commit"
git -C "$checkout" show "$commit:schemas/clab.schema.json" > "$checkout/clab.schema.json"
git -C "$checkout" show "$commit:LICENSE" > "$checkout/LICENSE"
echo "$digest  $checkout/clab.schema.json" | sha256sum --check --quiet
mkdir -p "$folder"
cp "$checkout/clab.schema.json" "$checkout/LICENSE" "$folder"
echo "in $folder; tests/golden/test_containerlab.py uses it"
