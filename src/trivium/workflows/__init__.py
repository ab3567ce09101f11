"""Complete jobs, such as training or evaluating a model, for the public API and command line."""
