"""Inference: generation, scoring, masked tokens, classification, answer spans and embeddings."""
