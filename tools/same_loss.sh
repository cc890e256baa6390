#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Prints the tables of docs/same_loss.md anew: 20 steps of training on every mesh, each held against a
# run that adds in the same order or against one rank (tests/models/test_same_loss.c). About a minute.
#
#     tools/same_loss.sh [BUILD]          default build/release; its target test_models
set -euo pipefail
cd "$(dirname "$0")/.."
DTENSOR_LONG=1 "${1:-build/release}/tests/test_models" --filter 'same_loss/on_every_mesh' 2>&1 |
    grep -E '^(\||[a-z0-9_]+/[a-z0-9_]+$|\[====\])'
