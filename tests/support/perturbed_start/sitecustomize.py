"""Replaces the products of PyTorch as soon as a process that a test started imports PyTorch."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import sys
from pathlib import Path


class _AfterTorch(importlib.abc.MetaPathFinder):
    """Finds PyTorch as before, and replaces its products once it is loaded."""

    def find_spec(self, name, path=None, target=None):
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is None or spec.loader is None:
            return spec
        load = spec.loader.exec_module

        def load_and_replace(module):
            load(module)
            sys.path.insert(0, str(Path(__file__).parents[1]))
            import perturbed

            perturbed.replace_products()

        spec.loader.exec_module = load_and_replace
        return spec


if os.environ.get("TRIVIUM_TEST_PERTURB") == "1":
    sys.meta_path.insert(0, _AfterTorch())
