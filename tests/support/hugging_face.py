"""Random `transformers` models against ours: logits, gradients and the way back, for any family."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from trivium.interop import FAMILIES, from_hugging_face, hf_weights, to_hugging_face
from trivium.models import Transformer

TOLERANCE = 1e-4  # of the logits' scale, in float32


def randomize(hf_model: Any, seed: int, std: float = 0.3) -> Any:
    """Draw every weight anew, norms and biases included, so that no term of a formula is 0 or 1."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in hf_model.named_parameters():
            if not weight.requires_grad:  # sinusoids in a table
                continue
            noise = torch.empty(weight.shape).normal_(0.0, std, generator=generator)
            norm = weight.ndim == 1 and name.endswith("weight")
            weight.copy_(1.0 + noise if norm else noise)
    return hf_model.eval()


def options_of(hf_model: Any) -> dict[str, Any]:
    """The `config.json` that `save_pretrained` would write."""
    return {**hf_model.config.to_dict(), "architectures": [type(hf_model).__name__]}


def ours_of(hf_model: Any) -> Transformer:
    """The same model as ours, without a file between."""
    tensors = {name: tensor.detach() for name, tensor in hf_model.state_dict().items()}
    return from_hugging_face(options_of(hf_model), tensors).eval()


def check_family(hf_model: Any, inputs: Mapping[str, Tensor]) -> Transformer:
    """Equal answers and gradients, and after the way back equal answers of theirs; ours, imported.

    `inputs` are theirs (input_ids, attention_mask, token_type_ids, decoder_input_ids, ...), which
    are called the same here. Only real positions are compared.
    """
    randomize(hf_model, seed=1)
    ours = ours_of(hf_model)
    theirs_said, ours_said = their_answers(hf_model, inputs), our_answers(ours, inputs)
    _compare(ours_said, theirs_said, inputs)
    with torch.no_grad():  # attention has another way then
        _compare(our_answers(ours, inputs), theirs_said, inputs)
    _loss(their_answers(hf_model, inputs), inputs).backward()
    _loss(our_answers(ours, inputs), inputs).backward()
    compare_gradients(hf_model, ours)
    options, tensors = to_hugging_face(ours)
    assert options["architectures"] == [type(hf_model).__name__]
    # Which token is padding stands with the tokenizer; their classifiers ask the config.
    options["pad_token_id"] = hf_model.config.pad_token_id
    again = type(hf_model)(type(hf_model.config)(**_without_names(options))).eval()
    missing, unexpected = again.load_state_dict(_their_names(again, tensors), strict=False)
    again.tie_weights()
    expected = {n for n, p in again.named_parameters() if p.requires_grad} & set(missing)
    assert not expected, sorted(expected)
    assert not unexpected, sorted(unexpected)
    _compare(our_answers(ours, inputs), their_answers(again, inputs), inputs)
    return ours


def our_answers(model: Transformer, inputs: Mapping[str, Tensor]) -> list[Tensor]:
    """What every head says, or the hidden states where there is none."""
    hidden = model(**inputs)
    decodes = "decoder_input_ids" in inputs
    mask = inputs.get("decoder_attention_mask" if decodes else "attention_mask")
    answers = [] if model.spec.heads and model.spec.heads[0].kind != "pooler" else [hidden]
    for head in model.spec.heads:
        answers.append(model.logits(hidden, head=head.kind, attention_mask=mask))
    return answers


def their_answers(hf_model: Any, inputs: Mapping[str, Tensor]) -> list[Tensor]:
    """The same in the same order, from the fields of their output."""
    output = hf_model(**inputs)
    if "start_logits" in output:
        return [torch.stack((output.start_logits, output.end_logits), -1)]
    second = ("seq_relationship_logits", "sop_logits")
    if "prediction_logits" in output:
        return [output.prediction_logits, *(output[key] for key in second if key in output)]
    if "logits" in output:
        return [output.logits]
    pooled = output.get("pooler_output")
    return [output.last_hidden_state, *([] if pooled is None else [pooled])]


def _compare(ours: list[Tensor], theirs: list[Tensor], inputs: Mapping[str, Tensor]) -> None:
    decodes = "decoder_input_ids" in inputs
    real = inputs.get("decoder_attention_mask" if decodes else "attention_mask")
    ids = inputs["decoder_input_ids" if decodes else "input_ids"]
    assert len(ours) == len(theirs)
    for mine, other in zip(ours, theirs):
        if mine.shape != other.shape:
            mine = mine.squeeze(-1)
        assert mine.shape == other.shape
        if real is not None and mine.shape[:2] == ids.shape:
            mine, other = mine[real.bool()], other[real.bool()]
        error = (mine - other).abs().max() / other.abs().max()
        assert error < TOLERANCE, f"relative error {error:.1e}"


def _loss(answers: list[Tensor], inputs: Mapping[str, Tensor]) -> Tensor:
    """A loss that reaches every weight: random weights of every answer at real positions."""
    decodes = "decoder_input_ids" in inputs
    real = inputs.get("decoder_attention_mask" if decodes else "attention_mask")
    ids = inputs["decoder_input_ids" if decodes else "input_ids"]
    total = torch.zeros(())
    for i, answer in enumerate(answers):
        answer = answer.squeeze(-1) if answer.shape[-1] == 1 else answer
        if real is not None and answer.shape[:2] == ids.shape:
            answer = answer[real.bool()]
        noise = torch.randn(answer.shape, generator=torch.Generator().manual_seed(i))
        total = total + (answer * noise).sum()
    return total


def compare_gradients(hf_model: Any, ours: Transformer) -> None:
    """Every gradient of theirs has its equal, after both went backward."""
    family = FAMILIES[hf_model.config.model_type]
    theirs = {n: p.grad for n, p in hf_model.named_parameters() if p.grad is not None}
    base = family.base_of(type(hf_model).__name__)
    if base and not any(name.startswith(base) for name in theirs):
        theirs = {base + name: gradient for name, gradient in theirs.items()}
    mine = dict(ours.named_parameters())
    shapes = {name: weight.shape for name, weight in mine.items()}
    # A key's bias has no gradient but rounding: softmax takes it away.
    least = 1e-3 * max(gradient.abs().max() for gradient in theirs.values())
    compared = 0
    for row in hf_weights(ours):
        if row.hf not in theirs:
            continue
        for name, gradient in row.split(theirs[row.hf], shapes).items():
            found = mine[name].grad
            assert found is not None, name
            scale = gradient.abs().max().clamp(min=least)
            assert (found - gradient).abs().max() / scale < 2e-3, name
            compared += 1
    assert compared > 5


def _without_names(options: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in options.items() if k not in ("model_type", "architectures")}


def _their_names(hf_model: Any, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The names as a model of the body alone has them."""
    names = set(hf_model.state_dict())
    base = f"{hf_model.base_model_prefix}."
    return {
        name if name in names else name.removeprefix(base): tensor
        for name, tensor in tensors.items()
    }
