"""What is asked of every decoder family: padding on either side, greedy tokens, exact configs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from hugging_face import check_family, options_of, ours_of, randomize
from hypothesis import strategies as st
from torch import Tensor

from trivium import spec
from trivium.errors import CheckpointError
from trivium.inference import Sampling, generate_ids
from trivium.interop import FAMILIES, from_hugging_face
from trivium.interop.config import Config
from trivium.interop.convert import family_for

VOCABULARY, POSITIONS, LENGTH = 43, 31, 13
SIDES = ("right", "left")
TOKENS = {"pad_token_id": 0, "bos_token_id": None, "eos_token_id": None}
PROMPTS = ([7, 3, 11, 2, 5], [13], [17, 19, 23, 29, 31, 37, 41])


def padded_inputs(side: str) -> dict[str, Tensor]:
    """Three rows of 13, 7 and 2 tokens, padded with 0, which is no token of theirs."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(1, VOCABULARY, (3, LENGTH), generator=generator)
    real = torch.arange(LENGTH) < torch.tensor([[13], [7], [2]])
    if side == "right":
        return {"input_ids": ids * real, "attention_mask": real.long()}
    real = real.flip(1)
    positions = (real.cumsum(1) - 1).clamp(min=0)
    return {"input_ids": ids * real, "attention_mask": real.long(), "position_ids": positions}


def check_class(hf_class: Any, config: Any, side: str) -> None:
    """Answers, gradients and the way back of one class, rows padded on one side."""
    ours = check_family(hf_class(config), padded_inputs(side))
    theirs = hf_class(config).num_parameters()
    assert ours.spec.num_parameters == theirs == sum(p.numel() for p in ours.parameters())


def check_greedy(hf_model: Any, count: int = 11) -> None:
    """Prompts of different lengths in one batch are continued with the same tokens as theirs."""
    model = ours_of(randomize(hf_model, seed=3, std=0.6))
    steps = generate_ids(model, PROMPTS, max_new_tokens=count, sampling=Sampling(0.0))
    ours = torch.tensor(list(steps)).T
    longest = max(map(len, PROMPTS))
    ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in PROMPTS])
    theirs = hf_model.generate(
        ids, attention_mask=(ids > 0).long(), max_new_tokens=count, do_sample=False
    )
    assert ours.tolist() == theirs[:, longest:].tolist()
    assert len(ours.unique()) > 3  # a constant continuation would prove little


def check_round_trip(model_type: str, model: spec.ModelSpec) -> None:
    """A spec is the same after a way through their `config.json`, except where training starts."""
    family = FAMILIES[model_type]
    assert family_for(model) is family
    architecture, options = family.write(model)
    names = {row.theirs for row in family.table(model, architecture)}
    config = Config({"model_type": model_type, **json.loads(json.dumps(options))})
    again = family.read(config, architecture, names)
    config.finish()
    assert again.replace(initialization=model.initialization) == model


def check_refused(hf_model: Any, changes: Mapping[str, Any], message: str) -> None:
    """A config with some options changed is refused with a message about them."""
    options = {**options_of(hf_model), **changes}
    with pytest.raises(CheckpointError, match=message):
        from_hugging_face(options, hf_model.state_dict())


def heads(*, classes: tuple[str, ...] = ("none", "lm", "classifier", "tagger", "span")):
    """Every head a class of theirs has, as a hypothesis strategy."""
    labels = st.integers(1, 11)
    known = {
        "none": st.just(()),
        "lm": st.booleans().map(lambda tied: (spec.LMHead(tied=tied),)),
        "classifier": labels.map(
            lambda n: (spec.ClassifierHead(num_labels=n, pooling="last", bias=False),)
        ),
        "tagger": labels.map(lambda n: (spec.TaggerHead(num_labels=n),)),
        "span": st.just((spec.SpanHead(),)),
    }
    return st.one_of(*(known[name] for name in classes))
