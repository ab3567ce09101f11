"""Blocks: norm, positions, mask, attention, feed-forward, cache, loss."""
