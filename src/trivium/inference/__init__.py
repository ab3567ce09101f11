"""From a model to answers: what the next token is, and what stands behind a mask."""

from trivium.inference.fill_mask import Fill, fill_masks
from trivium.inference.generate import end_ids, generate_ids, prompt_ids
from trivium.inference.sampling import Sampling
from trivium.inference.score import score_causal, score_masked
from trivium.inference.stream import TextStream

__all__ = [
    "Fill",
    "Sampling",
    "TextStream",
    "end_ids",
    "fill_masks",
    "generate_ids",
    "prompt_ids",
    "score_causal",
    "score_masked",
]
