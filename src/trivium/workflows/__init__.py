"""Whole jobs: what the public functions and the command line call."""
