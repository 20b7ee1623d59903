#!/usr/bin/env bash
# clang-tidy, with its static analyzer, over every source; or over some:
#   tests/tools/lint.sh [FILE...]
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
"$root/cmake/setup.sh" --tests
# shellcheck source=cmake/environment.sh
. "$root/cmake/environment.sh"
kolo_build clang kolo_core_wire_schema
if [ $# -eq 0 ]; then set -- --all; fi
exec "$root/tests/lint_test.py" "$root/build/clang" "$@"
