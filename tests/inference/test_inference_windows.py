"""Texts longer than a model was trained on: windows of `embed`, `fill_mask` and `score`."""

from __future__ import annotations

import pytest
import torch
from shaken_models import TEXT, shaken

from trivium.errors import SpecError
from trivium.inference.classify import to_classifications
from trivium.inference.request import GenerationRequest
from trivium.inference.sampling_params import SamplingParams
from trivium.inference.score import score_text
from trivium.interop.settings import Settings
from trivium.language_model import LanguageModel
from trivium.models import build
from trivium.presets import presets
from trivium.serve.generation import find_prompt_limit
from trivium.serve.limits import Limits
from trivium.text import Tokenizer


def test_an_encoder_reads_long_texts_in_windows_of_what_it_was_trained_on():
    tokenizer = Tokenizer.train("wordpiece", texts=TEXT * 5, vocab_size=139, progress=False)
    spec = presets["bert-tiny"].replace(vocab_size=144)
    encoder = LanguageModel(spec, shaken(spec), tokenizer)
    trained = Settings(config={"trained_length": 16})
    lm = LanguageModel(encoder.spec, encoder.module, encoder.tokenizer, trained)
    lengths = []
    hook = lm.module.register_forward_pre_hook(
        lambda _, args, inputs: lengths.append((args or (inputs["input_ids"],))[0].shape[1]),
        with_kwargs=True,
    )
    text = " ".join(TEXT * 3)
    ids = list(lm.tokenizer.encode(text, add_special_tokens=False).ids)
    vector = lm.embed(text, normalize=False)
    assert max(lengths) <= 16 < len(ids)
    windows = [window.ids for window in lm.windows([text])[0]]
    assert [token for window in windows for token in window[1:-1]] == ids
    expected = sum(
        lm.module(torch.tensor([window]))[0].detach().sum(0) for window in windows
    ) / sum(map(len, windows))
    torch.testing.assert_close(vector, expected, rtol=1e-4, atol=1e-5)
    fills = lm.fill_mask(f"{text} [MASK] {text} [MASK]")
    assert [len(each) for each in fills] == [5, 5]
    body = list(lm.tokenizer.encode(f"{text} [MASK] {text} [MASK]", add_special_tokens=False).ids)
    prefix, suffix = lm.tokenizer.prefix_ids, lm.tokenizer.suffix_ids
    at = body.index(lm.tokenizer.mask_id)
    near = torch.tensor([[*prefix, *body[at - 7 : at + 7], *suffix]])
    probabilities = encoder.logits(near)[0, 8].softmax(-1)[: encoder.tokenizer.vocab_size]
    assert fills[0][0].score == pytest.approx(float(probabilities.max()), rel=1e-3)
    assert lm.score(text) < 0
    assert max(lengths) <= 16
    hook.remove()
    assert lm.max_length == 16
    assert encoder.max_length == encoder.spec.max_length


def test_the_end_of_a_source_longer_than_those_of_training_is_cut():
    tokenizer = Tokenizer.train("unigram", texts=TEXT * 5, vocab_size=139, progress=False)
    spec = presets["t5-tiny"].replace(vocab_size=144)
    lm = LanguageModel(spec, shaken(spec), tokenizer, Settings(config={"trained_length": 16}))
    lengths = []
    lm.module.encoder.register_forward_pre_hook(lambda _, args: lengths.append(args[0].shape[1]))
    long, short = " ".join(TEXT * 3), "a"
    with pytest.warns(match="1 of 2 texts are longer than the 16 tokens"):
        together = lm.translate([long, short], max_new_tokens=3)
    assert max(lengths) == 16
    assert together[1] == lm.translate(short, max_new_tokens=3)


def test_an_encoder_with_relative_biases_reads_1024_tokens_where_nothing_states_a_length():
    spec = presets["t5-tiny"].replace(vocab_size=144)
    tokenizer = Tokenizer.train("unigram", texts=TEXT * 5, vocab_size=139, progress=False)
    lm = LanguageModel(spec, build(spec), tokenizer)
    text, lengths = " ".join(TEXT * 30), []
    lm.module.encoder.register_forward_pre_hook(lambda _, args: lengths.append(args[0].shape[1]))
    for call in (lm.translate, lm.generate):
        with pytest.warns(match="longer than the 1024 tokens"):
            call(text, max_new_tokens=1)
    assert score_text(lm, "a", text).num_cut > 0
    assert lengths == [1024] * 3
    assert find_prompt_limit(lm, Limits())[0] == 1024
    with pytest.raises(SpecError, match="at most 1024"):
        lm.engine().add(GenerationRequest([5] * 1025, SamplingParams()))
    stated = Settings(tokenizer={"model_max_length": 2048})
    assert LanguageModel(spec, lm.module, settings=stated).max_length == 2048


def test_several_labels_are_a_tuple():
    logits = torch.tensor([[2.0, 1.0, -1.0], [-1.0, -2.0, -3.0]])
    first, second = to_classifications(logits, ("a, b", "c", "d"), "multi-label")
    assert (first.label, first.label_text, second.label) == (("a, b", "c"), "a, b, c", ())


def test_inputs_that_models_without_attention_or_absolute_positions_cannot_take():
    rotary, recurrent, ngram = (
        presets[f"{name}-tiny"].replace(vocab_size=144) for name in ("llama", "lstm", "ngram")
    )
    for spec, inputs, what in (
        (rotary, {"position_ids": [[-1, 0]]}, "position_ids has -1"),
        (recurrent, {"position_ids": [[0, 1]]}, "has no positions"),
        (ngram, {"position_ids": [[0, 1]]}, "has no positions"),
        (recurrent, {"attention_mask": [[0, 0]]}, "every token of the input is masked"),
    ):
        with pytest.raises(SpecError, match=what):
            LanguageModel(spec, build(spec)).logits([[3, 5]], **inputs)


def test_vectors_are_as_wide_as_hidden_states():
    spec = presets["ngram-tiny"].replace(vocab_size=144)  # its tokens are narrower
    tokenizer = Tokenizer.train("unigram", texts=TEXT * 5, vocab_size=139, progress=False)
    vectors = LanguageModel(spec, build(spec), tokenizer).embed(["The cat", "a"])
    assert vectors.shape == (2, spec.head_config.d_model)
    assert spec.head_config.d_model > spec.d_model
