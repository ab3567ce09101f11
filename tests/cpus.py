"""Runs the tests of numbers as other machines would: older CPUs, two threads, other rounding.

    python tests/cpus.py                       all settings, one after the other
    python tests/cpus.py --commit "$(git rev-parse HEAD)"    a quarter of the tests under one
                                                             setting, both chosen by the hash

PyTorch and oneDNN use no newer instructions than these variables allow; a setting that names newer
ones than the CPU has is the CPU's own. `tests/conftest.py` reads the others. The last one changes
every matrix product by a rounding error that follows from all its operands, so that only the same
computation gives the same bits (`tests/support/perturbed.py`).
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys

SETTINGS = (
    {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41"},
    {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"},
    {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE"},
    # Two workers have four threads on two cores: threads that wait must not spin.
    {"TRIVIUM_TEST_THREADS": "2", "OMP_WAIT_POLICY": "PASSIVE"},
    {"TRIVIUM_TEST_SEED": "1"},
    {"TRIVIUM_TEST_PERTURB": "1"},
)
# Tests of what a model computes, in four groups; the others know no CPU.
PACKAGES = (
    "interop",
    "train workflows",
    "objectives inference overfit",
    "adapt evaluate explain models nn property",
)


def main() -> int:
    """Exit code 1 if the tests fail under a setting."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--commit", help="run a part, chosen by this hash")
    commit = parser.parse_args().commit
    chosen, packages = SETTINGS, " ".join(PACKAGES)
    if commit is not None:
        group, setting = divmod(int(commit, 16), len(SETTINGS))
        chosen, packages = (SETTINGS[setting],), PACKAGES[group % len(PACKAGES)]
    failed = []
    for setting in chosen:
        name = " ".join(f"{key}={value}" for key, value in setting.items())
        print(f"== {name}: {packages}", flush=True)
        tests = [sys.executable, "-m", "pytest", "-n", "2", "--dist", "worksteal"]
        tests += [f"tests/{package}" for package in packages.split()]
        if subprocess.run(tests, env={**os.environ, **setting}, check=False).returncode != 0:
            failed.append(name)
    print("\n".join([f"failed under {name}" for name in failed] or ["all passed"]))
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
