"""Inference: generation, scoring, mask filling, classification, answer spans and embeddings."""
