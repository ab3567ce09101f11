"""The hidden states of every layer of a Transformer.

Layer 0 is the input embedding, including positions, token types and norm, as the first block reads
it. Layer i is the output of block i. The last layer is the output of the last block after the
stack's final norm, if it has one. This is `output_hidden_states` of `transformers`, except for
Mamba and RWKV, whose classes leave the embedding out and also return the last block without norm.

Shape letters: L selected layers, B rows, T tokens, D d_model.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from trivium.errors import SpecError
from trivium.inference.forward import batch_by_length, check_ids, pad_rows, padding_mask
from trivium.inference.text_model import TextModel
from trivium.models import LanguageModule
from trivium.models.transformer import Transformer
from trivium.text.inputs import TextInput

Layers = Literal["all"] | Sequence[int]
"""Indices of layers, 0 for the input embedding, negative ones counted from the last; or "all"."""

_BATCH_STATES = 16_384  # Hidden states of one forward pass: tokens times layers.


@dataclass(frozen=True, slots=True)
class HiddenStates:
    """The hidden states of the tokens of a text, including the special tokens that were read.

    Args:
        tokens: the tokens as text; bytes that are not text are written \\xNN.
        spans: the character offsets of the tokens in the text; None for special tokens.
        layers: the index of every selected layer, 0 for the input embedding.
        vectors: float32 [L, T, D] on the CPU, one matrix [T, D] per selected layer.
    """

    tokens: list[str]
    spans: list[tuple[int, int] | None]
    layers: list[int]
    vectors: Tensor


def layer_indices(model: LanguageModule, layers: Layers) -> list[int]:
    """Return the selected layers as indices from 0, in the order given.

    The layers are those of the decoder of a decoder-only model, else those of the encoder.

    Raises:
        SpecError: the model is not a Transformer, or has no such layer.
    """
    if not isinstance(model, Transformer):
        raise SpecError(
            f"this model is of kind {model.spec.kind}: only a Transformer has hidden states of "
            "every layer. Its final ones: `embed`."
        )
    return _layer_indices(model.spec.stacks[0].num_layers, layers)


def _layer_indices(last: int, layers: Layers) -> list[int]:
    """Return the selected layers of a stack whose last layer has the index `last`."""
    if layers == "all":
        return list(range(last + 1))
    if isinstance(layers, str) or not layers:
        raise SpecError(f'layers is {layers!r}: give a list of indices, or "all".')
    for layer in layers:
        if not -last - 1 <= layer <= last:
            raise SpecError(
                f"there is no layer {layer}: this model has layers 0 (the input embedding) to "
                f"{last}."
            )
    return [layer % (last + 1) for layer in layers]


@torch.inference_mode()
def layer_hidden_states(
    model: LanguageModule, input_ids: Tensor, *, layers: Layers = "all", **inputs: Any
) -> Tensor:
    """Compute the hidden states of several layers in one forward pass.

    In an encoder-decoder, these are the layers of the encoder or, if `decoder_input_ids` are given,
    those of the decoder. An enhanced mask decoder (DeBERTa) is not run.

    Args:
        model: a Transformer. Dropout is not applied, even in training mode.
        input_ids: int64 [B, T].
        layers: the layers to return; the others are not kept in memory.
        **inputs: further arguments of `Transformer.read`.

    Returns:
        [L, B, T, D] on the model's device, in its precision.

    Raises:
        SpecError: the model is not a Transformer, has no such layer, or the input does not fit.
    """
    layer_indices(model, "all")
    assert isinstance(model, Transformer)
    reads_target = inputs.get("decoder_input_ids") is not None
    stack = model.decoder if reads_target or model.encoder is None else model.encoder
    if stack is None:
        raise SpecError(f"this model is {model.spec.family}: it takes no decoder_input_ids.")
    last = stack.spec.num_layers
    selected = _layer_indices(last, layers)
    states: dict[int, Tensor] = {}
    num_seen = 0

    def record(module: Any, args: Any, output: Any) -> None:
        """Keep the output of a layer if it is selected; a shared block is seen several times."""
        nonlocal num_seen
        if num_seen in selected:
            states[num_seen] = output[0] if isinstance(output, tuple) else output
        num_seen += 1

    def record_last(module: Any, args: Any, output: tuple[Tensor, Any]) -> None:
        """Replace the output of the last block by that of the stack, after the final norm."""
        states[last] = output[0]

    with ExitStack() as cleanup:
        cleanup.callback(model.train, model.training)
        for module in (stack.embedding, *stack.layers):
            cleanup.callback(module.register_forward_hook(record).remove)
        cleanup.callback(stack.register_forward_hook(record_last).remove)
        # As in `attention_weights`, hooks of the model itself (of a server) are not run.
        model.eval()
        (model.encode if stack is model.encoder else model.forward)(input_ids, **inputs)
    return torch.stack([states[layer] for layer in selected])


def text_hidden_states(
    lm: TextModel, texts: Sequence[Sequence[TextInput]], *, layers: Layers
) -> list[HiddenStates]:
    """Return the hidden states of the tokens of texts. Each text is given as a list of windows.

    The windows of a text are read one by one and their tokens concatenated, special tokens
    included.
    """
    module = lm.module
    selected = layer_indices(module, layers)
    windows = [window for text in texts for window in text]
    for window in windows:
        check_ids(window.ids, module.spec.input_vocab_size)
    states: dict[int, Tensor] = {}
    lengths = [len(window.ids) for window in windows]
    for batch in batch_by_length(lengths, max(1, _BATCH_STATES // len(selected))):
        ids, row_lengths = pad_rows([windows[index].ids for index in batch], module.device)
        inputs: dict[str, Any] = {"attention_mask": padding_mask(row_lengths, ids.shape[1])}
        if module.spec.reads_token_types:
            types = [windows[index].type_ids for index in batch]
            inputs["token_type_ids"] = pad_rows(types, module.device)[0]
        hidden = layer_hidden_states(module, ids, layers=selected, **inputs).float().cpu()
        for row, index in enumerate(batch):
            states[index] = hidden[:, row, : lengths[index]].clone()
    names, indices, results = lm.source_tokenizer.readable_tokens, iter(range(len(windows))), []
    for text in texts:
        results.append(
            HiddenStates(
                tokens=[names[token] for window in text for token in window.ids],
                spans=[
                    None if owner is None else span
                    for window in text
                    for span, owner in zip(window.offsets, window.texts, strict=True)
                ],
                layers=selected,
                vectors=torch.cat([states[next(indices)] for _ in text], 1),
            )
        )
    return results
