"""Hidden states of every layer: equal to `output_hidden_states` of `transformers` in float64."""

from __future__ import annotations

import pytest
import torch
from hf_models import Case, hf_model, inputs_of, tolerance, transformers
from hugging_face import ours_of
from shaken_models import TEXT, shaken

from trivium.errors import SpecError
from trivium.inference.hidden_states import layer_hidden_states
from trivium.interop.settings import Settings
from trivium.language_model import LanguageModel
from trivium.models import build
from trivium.presets import presets
from trivium.text import Tokenizer

# Post-norm, shared layers, pre-norm with and without position embeddings, experts, both stacks.
NAMES = (
    *("BertModel", "AlbertModel", "DebertaV2Model", "ModernBertModel"),
    *("GPT2LMHeadModel", "LlamaForCausalLM", "MixtralForCausalLM", "Gemma2ForCausalLM"),
    *("T5ForConditionalGeneration", "BartForConditionalGeneration"),
)


@pytest.mark.usefixtures("double_precision")
@pytest.mark.parametrize("name", [name for name in NAMES if hasattr(transformers, name)])
def test_every_layer_is_that_of_transformers(name):
    case = Case(name, {})
    original, inputs = hf_model(case), inputs_of(case)
    local = ours_of(original).train()
    with torch.no_grad():
        output = original(**inputs, output_hidden_states=True)
    ids, real = inputs.pop("input_ids"), inputs["attention_mask"].bool()
    if "decoder_input_ids" in inputs:
        decoder = layer_hidden_states(local, ids, **inputs)
        assert_equal(decoder, output.decoder_hidden_states, inputs["decoder_attention_mask"], name)
        mask = inputs["attention_mask"]
        encoder = layer_hidden_states(local, ids, attention_mask=mask)
        assert_equal(encoder, output.encoder_hidden_states, mask, name)
    else:
        states = layer_hidden_states(local, ids, **inputs)
        assert_equal(states, output.hidden_states, real, name)
        some = layer_hidden_states(local, ids, layers=[-1, 1], **inputs)
        assert torch.equal(some, states[[-1, 1]])
    assert local.training
    assert not any(module._forward_hooks for module in local.modules())


def assert_equal(ours, theirs, mask, name):
    assert len(ours) == len(theirs)
    for mine, other in zip(ours, theirs, strict=True):
        mine, other = mine[mask.bool()], other[mask.bool()]
        assert (mine - other).abs().max() < tolerance(name) * other.abs().max(), name


def test_a_long_text_is_read_in_windows_and_the_last_layer_is_what_the_head_reads():
    tokenizer = Tokenizer.train("wordpiece", texts=TEXT * 5, vocab_size=139, progress=False)
    spec = presets["bert-tiny"].replace(vocab_size=144)
    lm = LanguageModel(spec, shaken(spec), tokenizer, Settings(config={"trained_length": 16}))
    text = " ".join(TEXT * 3)
    states = lm.hidden_states([text, "a"])
    windows = [window.ids for window in lm.windows([text])[0]]
    assert len(windows) > 1
    assert states[0].layers == [*range(spec.encoder.num_layers + 1)]
    assert len(states[0].tokens) == states[0].vectors.shape[1] == sum(map(len, windows))
    assert (states[0].tokens[0], states[0].spans[0]) == ("[CLS]", None)
    with torch.no_grad():
        expected = torch.cat([lm.module(torch.tensor([window]))[0] for window in windows])
    torch.testing.assert_close(states[0].vectors[-1], expected, rtol=1e-4, atol=1e-5)
    alone = lm.hidden_states("a", layers=[1])
    torch.testing.assert_close(alone.vectors, states[1].vectors[[1]], rtol=1e-4, atol=1e-5)


def test_refusals():
    tokenizer = Tokenizer.train("wordpiece", texts=TEXT * 5, vocab_size=139, progress=False)
    spec = presets["gpt2-tiny"].replace(vocab_size=144)
    lm = LanguageModel(spec, build(spec), tokenizer)
    last = spec.decoder.num_layers
    for layers, message in (
        ([last + 1], f"no layer {last + 1}: this model has layers 0 .* to {last}"),
        ([-last - 2], "no layer"),
        ([], "give a list"),
        ("last", "give a list"),
    ):
        with pytest.raises(SpecError, match=message):
            lm.hidden_states("a", layers=layers)
    spec = presets["lstm-tiny"].replace(vocab_size=144)
    with pytest.raises(SpecError, match="only a Transformer"):
        LanguageModel(spec, build(spec), tokenizer).hidden_states("a")
