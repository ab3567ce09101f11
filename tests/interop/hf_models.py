"""Small random `transformers` models of every class that is read, as one table of cases."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from hf_sizes import LLAMA3_ROPE as LLAMA3_ROPE
from hf_sizes import SIZES as SIZES
from hf_sizes import VARIANTS as VARIANTS
from hf_sizes import VOCABULARY as VOCABULARY
from hugging_face import randomize
from torch import Tensor

from trivium.models import Transformer
from trivium.nn.positions.sinusoidal import sinusoids

transformers = pytest.importorskip("transformers")

LENGTH = 13


class Case(NamedTuple):
    """A class of `transformers` and what its config has beside the small sizes of its family."""

    name: str
    changes: Mapping[str, Any]

    @property
    def id(self) -> str:
        """What pytest shows."""
        return "-".join([self.name, *self.changes])


def case_id(case: Case) -> str:
    """Return the name of a case in the ids of parametrized tests."""
    return case.id


ENCODER_DECODERS = (
    "T5",
    "MT5",
    "UMT5",
    "Bart",
    "Marian",
    "Pegasus",
    "MBart",
    "M2M100",
    "BigBirdPegasus",
)
TWO_VOCABULARIES = {"decoder_vocab_size": 47, "share_encoder_decoder_embeddings": False}


def prefix_of(name: str) -> str:
    """The family's prefix in the name of a class."""
    return max((prefix for prefix in SIZES if name.startswith(prefix)), key=len)


def _sinusoids(position: Tensor, *_: Any) -> Tensor:
    """XLNet's, from the same float32 frequencies as ours: [T, 1, D]."""
    width = SIZES["XLNet"]["d_model"]
    return sinusoids(position, 1e4, width, in_halves=True)[:, None].to(torch.get_default_dtype())


def _softmax(scores: Tensor, dim: int, **_: Any) -> Tensor:
    """Longformer's, which is float32 whatever the model is."""
    return scores.softmax(dim)


transformers.XLNetModel.positional_embedding = staticmethod(_sinusoids)
_functional = SimpleNamespace(**{**vars(torch.nn.functional), "softmax": _softmax})
transformers.models.longformer.modeling_longformer.nn = SimpleNamespace(
    **{**vars(torch.nn), "functional": _functional}
)


def hf_model(case: Case, seed: int = 1) -> Any:
    """A model whose every weight is random, norms and biases included."""
    two = "QuestionAnswering" in case.name or case.name == "AlbertForPreTraining"
    options = {**SIZES[prefix_of(case.name)], "num_labels": 2 if two else 5, **case.changes}
    hf_class = getattr(transformers, case.name)
    model = hf_class(hf_class.config_class(**options)).to(torch.get_default_dtype())
    for name, buffer in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            buffer.copy_(torch.arange(len(buffer)) % 3 / 5)
    return randomize(model, seed)


def inputs_of(case: Case) -> dict[str, Tensor]:
    """Three rows of 13, 7 and 2 tokens, padded on the right with the padding token."""
    generator = torch.Generator().manual_seed(0)
    mask = torch.arange(LENGTH) < torch.tensor([[LENGTH], [7], [2]])
    ids = torch.randint(5, VOCABULARY, (3, LENGTH), generator=generator)
    prefix = prefix_of(case.name)
    pad = {**SIZES[prefix], **case.changes}.get("pad_token_id", 0)
    inputs = {"input_ids": ids.where(mask, pad), "attention_mask": mask.long()}
    if prefix == "XLNet" and "summary_type" not in case.changes:
        # Padded on the left: a summary reads the last position.
        inputs = {name: each.flip(1) for name, each in inputs.items()}
    if "type_vocab_size" in SIZES[prefix] or prefix == "XLNet":
        inputs["token_type_ids"] = torch.randint(0, 3, (3, LENGTH), generator=generator)
    if prefix == "Longformer":
        inputs["global_tokens"] = torch.rand(3, LENGTH, generator=generator) < 0.2
    if prefix in ENCODER_DECODERS and not is_encoder(case):
        real = torch.arange(7) < torch.tensor([[7], [5], [3]])
        targets = torch.randint(5, VOCABULARY, (3, 7), generator=generator)
        if case.name.endswith("SequenceClassification"):
            # T5 and BART read the state of </s>, which ends source and target alike.
            last = mask.sum(1, keepdim=True) - 1
            inputs["input_ids"] = inputs["input_ids"].scatter(1, last, 2)
            inputs["decoder_input_ids"] = inputs["input_ids"].roll(1, 1)
            inputs["decoder_input_ids"][:, 0] = SIZES[prefix]["decoder_start_token_id"]
            inputs["decoder_attention_mask"] = inputs["attention_mask"]
        else:
            inputs["decoder_input_ids"] = targets.where(real, 0)
            inputs["decoder_attention_mask"] = real.long()
    return inputs


def is_encoder(case: Case) -> bool:
    """Whether a class of an encoder-decoder family has the encoder alone."""
    return case.name.endswith(("T5EncoderModel", "T5ForTokenClassification"))


def local_outputs(model: Transformer, inputs: Mapping[str, Tensor]) -> Iterator[Tensor]:
    """The logits of every head, or the hidden states where there is none."""
    hidden = model(**inputs)
    mask = inputs.get("decoder_attention_mask", inputs["attention_mask"])
    if not model.spec.heads or model.spec.heads[0].kind == "pooler":
        yield hidden
    for head in model.spec.heads:
        if head.kind == "pooler" and head != model.spec.heads[0]:
            continue  # BigBird's files have it beside other heads, which it is not read by
        yield model.logits(hidden, head=head.kind, attention_mask=mask)


def hf_outputs(model: Any, inputs: Mapping[str, Tensor]) -> Iterator[Tensor]:
    """The same in the same order."""
    theirs = {"global_tokens": "global_attention_mask"}
    output = model(**{theirs.get(name, name): each + 0 for name, each in inputs.items()})
    if "start_logits" in output:
        yield torch.stack((output.start_logits, output.end_logits), -1)
        return
    names = ("prediction_logits", "seq_relationship_logits", "sop_logits", "logits")
    logits = [output[name] for name in names if name in output]
    pooled = output.get("pooler_output")
    yield from logits or [output.last_hidden_state, *([] if pooled is None else [pooled])]


def tolerance(name: str) -> float:
    """Of the scale, in float64. Some tables of sinusoids are rounded to float32 when made."""
    return 1e-6 if name.startswith(("Marian", "Pegasus")) else 1e-9


def assert_equal(
    local: Iterator[Tensor], hf: Iterator[Tensor], inputs: Mapping[str, Tensor], name: str = ""
) -> None:
    """Within `tolerance` of the class called `name`, at real positions."""
    mask = inputs.get("decoder_attention_mask", inputs["attention_mask"])
    for mine, other in zip(local, hf, strict=True):
        mine = mine.squeeze(-1) if mine.ndim > other.ndim else mine
        assert mine.shape == other.shape
        if mine.shape[:2] == mask.shape:
            mine, other = mine[mask.bool()], other[mask.bool()]
        assert (mine - other).abs().max() < tolerance(name) * other.abs().max(), name
