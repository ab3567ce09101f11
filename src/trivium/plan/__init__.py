"""Estimates of a training run before it starts: calculated for many GPUs, or measured here."""
