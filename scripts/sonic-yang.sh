#!/bin/sh
# Fetches SONiC's YANG models, against which tests check what is generated for SONiC switches:
#
#   scripts/sonic-yang.sh [RELEASE ...]    by default 202305, 202505 and 202605
#
# They go to ~/.cache/closloop/sonic-yang/RELEASE, or to $CLOSLOOP_SONIC_YANG/RELEASE. They are
# Microsoft's and others', under the Apache License 2.0 (LICENSE beside them), and no part of closloop.
# Needs git and a network that reaches GitHub.
set -eu

repository=${SONIC_BUILDIMAGE:-https://github.com/sonic-net/sonic-buildimage}
folder=${CLOSLOOP_SONIC_YANG:-$HOME/.cache/closloop/sonic-yang}
[ $# -gt 0 ] || set -- 202305 202505 202605

checkout=$(mktemp -d)
trap 'rm -rf "$checkout"' EXIT
for release in "$@"; do
    echo "the YANG models of $release"
    rm -rf "$checkout/repo"
    # only the files below one folder are transferred
    git init --quiet "$checkout/repo"
    git -C "$checkout/repo" remote add origin "$repository"
    git -C "$checkout/repo" sparse-checkout set src/sonic-yang-models
    git -C "$checkout/repo" fetch --quiet --depth 1 --filter blob:none origin "refs/heads/$release"
    git -C "$checkout/repo" checkout --quiet FETCH_HEAD
    rm -rf "${folder:?}/$release"
    mkdir -p "$folder/$release"
    for part in LICENSE yang-models yang-templates; do
        cp -R "$checkout/repo/src/sonic-yang-models/$part" "$folder/$release"
    done
done
echo "in $folder; tests/unit/agent/test_sonic_yang.py uses them"
