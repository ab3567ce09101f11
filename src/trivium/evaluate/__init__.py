"""How good a model is, and what simpler ones reach."""
