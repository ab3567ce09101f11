"""The parts of models, each with its equation and paper; usable alone.

`attention`, `mask`, `kv_cache`, `positions`, `feed_forward`, `norm`, `loss`, `recurrent`,
`packed_linear`: one idea a module, imported from there.
"""
