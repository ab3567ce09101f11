"""Estimates for a training run: calculated for many GPUs, or measured on this machine."""
