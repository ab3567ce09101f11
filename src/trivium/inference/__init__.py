"""From a model to its outputs: generation, scoring, masked tokens, labels, spans and vectors."""
