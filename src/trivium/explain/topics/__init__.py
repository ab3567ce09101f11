"""The topics of `trivium explain`, one module per topic."""
