#!/bin/sh
# Builds the wheel, installs it into a clean virtual environment and tests it there, away from the sources.
#
#   python/tests/wheel.sh [PYTHON [options of "pip wheel" ...]]      in the environment: MASKLESS_CUDA=OFF|AUTO|ON,
#                                                                  MASKLESS_BUILD_CLI=OFF|ON (the program too)
#
# Wheels stay in dist/. With --no-build-isolation the build uses what PYTHON has installed; if torch is there, the wheel
# has the PyTorch operations, and is also tested in an environment with that torch.
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
python=${1:-python3}
[ $# -eq 0 ] || shift
case " $* " in
  *" --no-build-isolation "*) isolated=0 ;;
  *) isolated=1 ;;
esac
python=$(command -v "$python")
case $python in
  /*) ;;
  *) python=$PWD/$python ;;
esac
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$python" -m pip wheel "$root" --no-deps --wheel-dir "$work/dist" -q "$@"
mkdir -p "$root/dist"
cp "$work"/dist/maskless-*.whl "$root/dist/"
cd "$work"

"$python" -m venv "$work/venv"
"$work/venv/bin/python" -m pip install -q "$work"/dist/maskless-*.whl pytest
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
try:
    import maskless.torch
except ModuleNotFoundError as error:
    assert "maskless.torch needs PyTorch 2.10 or later" in str(error), error
else:
    raise AssertionError("there is a torch in the clean environment")
print("maskless", maskless.__version__, "installed and running from", package)
EOF
if [ "${MASKLESS_BUILD_CLI:-OFF}" = ON ]; then "$work/venv/bin/maskless" --help >/dev/null; fi
"$work/venv/bin/python" -m pytest -q -p no:cacheprovider --rootdir "$root" \
  "$root/python/tests/test_golden.py" "$root/python/tests/test_errors.py" "$root/python/tests/test_package.py"

# With torch beside it: the torch of PYTHON, seen from the clean environment.
"$python" -c "import torch" 2>/dev/null || exit 0
"$python" -c "import sys; print('\n'.join(p for p in sys.path if p.endswith('-packages')))" \
  >"$(echo "$work"/venv/lib/python3.*/site-packages)/torch-of-builder.pth"
"$work/venv/bin/python" - $isolated <<'EOF'
import pathlib, sys
import maskless
import torch

package = pathlib.Path(maskless.__file__).parent
assert str(package).startswith(sys.prefix), package
if sys.argv[1] == "0":
    import maskless.torch

    layer = maskless.torch.Dropout(0.5, seed=123)
    x = torch.ones(8, requires_grad=True)
    y = layer(x)
    y.sum().backward()
    assert y.tolist() == x.grad.tolist() == [0, 0, 2, 0, 0, 0, 2, 0], (y, x.grad)
    print("maskless.torch runs on torch", torch.__version__)
    (package / "_torch.so").unlink()  # for the next lines: a wheel without them
EOF
"$work/venv/bin/python" - <<'EOF'
try:
    import maskless.torch
except ImportError as error:  # a wheel without operations says how to get them
    assert "built without its PyTorch operations" in str(error), error
else:
    raise AssertionError("operations that were not built")
EOF
