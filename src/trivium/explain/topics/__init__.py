"""The topics, a module each."""
