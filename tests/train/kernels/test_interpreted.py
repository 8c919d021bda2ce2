"""The Triton kernels in Triton's interpreter, on CPU: the tests of this directory again, in a process of their own.

The interpreter is chosen before Triton is imported, for a whole process.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
triton = pytest.importorskip("triton")
numpy = pytest.importorskip("numpy")


def version(module):
    return tuple(int(part) for part in module.__version__.split(".")[:2])


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="this is that process")
@pytest.mark.skipif(
    version(triton) < (3, 9) and version(numpy) >= (2, 4), reason="numpy 2.4 breaks Triton 3.6's interpreter"
)
@pytest.mark.parametrize("modules", ["schedule route tiles", "experts", "operators"])
def test_the_kernels_compute_what_the_plain_ones_do(modules):
    files = [Path(__file__).with_name(f"test_{module}.py") for module in modules.split()]
    command = [sys.executable, "-m", "pytest", *files, "-p", "no:cacheprovider", "-p", "no:xdist", "--tb=short"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment |= {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600, check=False)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
