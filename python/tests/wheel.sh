#!/bin/sh
# Builds the wheel, installs it into a clean virtual environment and tests it there, away from the sources.
#
#   python/tests/wheel.sh [PYTHON [options of "pip wheel" ...]]      in the environment: MASKLESS_CUDA=OFF|AUTO|ON,
#                                                                  MASKLESS_BUILD_CLI=OFF|ON (the program too)
#
# Wheels stay in dist/. With --no-build-isolation the build uses what PYTHON has installed (torch's headers too).
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
python=${1:-python3}
[ $# -eq 0 ] || shift
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$python" -m pip wheel "$root" --no-deps --wheel-dir "$work/dist" -q "$@"
mkdir -p "$root/dist"
cp "$work"/dist/maskless-*.whl "$root/dist/"

"$python" -m venv "$work/venv"
"$work/venv/bin/python" -m pip install -q "$work"/dist/maskless-*.whl pytest
cd "$work"
"$work/venv/bin/python" - <<'EOF'
import pathlib, subprocess
import numpy as np
import maskless

package = pathlib.Path(maskless.__file__).parent
assert "site-packages" in str(package), package
names = {p.name for p in package.iterdir()}
assert {"py.typed", "_core.pyi"} <= names, names
for library in package.glob("*.so"):
    needed = subprocess.run(["readelf", "-d", library], capture_output=True, text=True, check=True).stdout
    for foreign in ("libhwy", "libcuda", "libcudart", "libc10", "libpython"):
        assert foreign not in needed, (library, foreign)
x = np.ones(8, np.float32)
assert maskless.dropout(x, 0.5, seed=123).tolist() == [0, 0, 2, 0, 0, 0, 2, 0]
print("maskless", maskless.__version__, "installed and running from", package)
EOF
if [ "${MASKLESS_BUILD_CLI:-OFF}" = ON ]; then "$work/venv/bin/maskless" --help >/dev/null; fi
"$work/venv/bin/python" -m pytest -q -p no:cacheprovider --rootdir "$root" \
  "$root/python/tests/test_golden.py" "$root/python/tests/test_errors.py" "$root/python/tests/test_package.py"
