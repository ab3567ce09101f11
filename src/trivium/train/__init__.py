"""Training: the recipe, the loop, checkpoints, the run folder, live progress."""
