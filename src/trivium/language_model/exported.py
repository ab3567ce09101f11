"""What of a model `transformers` has a class for."""

from __future__ import annotations

import warnings

from trivium.models import LanguageModule, build


def with_one_head(module: LanguageModule) -> LanguageModule:
    """The model itself; a decoder that was taught a task, without its head over the vocabulary.

    No class of theirs has both. What is left behind is warned of.
    """
    spec = module.spec
    tasks = tuple(head for head in spec.heads if head.kind in ("classifier", "tagger"))
    if spec.family != "decoder-only" or not tasks or len(tasks) == len(spec.heads):
        return module
    warnings.warn(
        f"a {tasks[0].kind} of theirs has no head over the vocabulary beside it: what was exported "
        "tells labels, and no longer the next token.",
        stacklevel=3,
    )
    alone = build(spec.replace(heads=tasks), device="meta")
    weights = module.state_dict()
    alone.load_state_dict({name: weights[name] for name in alone.state_dict()}, assign=True)
    return alone.eval()
