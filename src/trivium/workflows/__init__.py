"""Whole jobs that the public functions and the command line call."""
