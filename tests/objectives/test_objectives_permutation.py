"""Permutation language modelling: what is asked, what is seen, and that it is learned."""

from __future__ import annotations
