"""Fixed random state, one thread, no network: the same for every test."""

from __future__ import annotations

import atexit
import os
import random
import shutil
import signal
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch

# Set by tests/cpus.py.
THREADS = int(os.environ.get("TRIVIUM_TEST_THREADS", "1"))
SEED = int(os.environ.get("TRIVIUM_TEST_SEED", "0"))
# Inherited by the programs that tests start.
os.environ["OMP_NUM_THREADS"] = str(THREADS)
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ["TRIVIUM_LANGUAGE"] = "en"
# The cache of the user who runs the tests stays as it is.
if "TRIVIUM_CACHE" not in os.environ:
    os.environ["TRIVIUM_CACHE"] = tempfile.mkdtemp(prefix="trivium-cache-")
    atexit.register(shutil.rmtree, os.environ["TRIVIUM_CACHE"], ignore_errors=True)
torch.set_num_threads(THREADS)
# A shell that runs the tests in the background makes them ignore Ctrl-C, which some tests send.
signal.signal(signal.SIGINT, signal.default_int_handler)
# Helpers that several test folders import.
sys.path.insert(0, str(Path(__file__).parent / "support"))
if os.environ.get("TRIVIUM_TEST_PERTURB") == "1":  # before anything imports what is replaced
    import perturbed

    perturbed.install()


@pytest.fixture(autouse=True)
def fixed_random_state():
    """Start every test from the same random state and restore the one before it."""
    before = random.getstate(), np.random.get_state(), torch.get_rng_state()
    random.seed(SEED)
    np.random.seed(SEED)
    torch.manual_seed(SEED)
    yield
    random.setstate(before[0])
    np.random.set_state(before[1])
    torch.set_rng_state(before[2])


@pytest.fixture(scope="module")
def double_precision():
    """A module in float64: `pytestmark = pytest.mark.usefixtures("double_precision")`."""
    import double

    with double.double_precision():
        yield
