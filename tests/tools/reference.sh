#!/usr/bin/env bash
# Makes the reference of the public headers, build/reference/html/index.html, with Doxygen (Debian
# package doxygen). Fails with Doxygen's warnings.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
mkdir -p build
doxygen docs/Doxyfile
