"""`LanguageModel`: its capabilities by family and heads, ids, texts and what travels with it."""

from __future__ import annotations

import functools
import json
import re
import subprocess
import sys
from functools import partial

import numpy as np
import pytest
import torch
from shaken_models import TEXT, shaken
from small_models import small_spec
from task_models import VOCABULARY, as_ours, theirs
from their_tokenizers import ours

import trivium
from trivium.config import iter_keys
from trivium.errors import SpecError, TokenizerError, TriviumError
from trivium.inference.classify import classifier_logits
from trivium.inference.fill_mask import MaskFill
from trivium.inference.request import GenerationRequest
from trivium.inference.sampling_params import BeamSearchParams, SamplingParams
from trivium.inference.speculative import DraftModel, PromptLookup
from trivium.interop.settings import Settings
from trivium.language_model import LanguageModel
from trivium.model_loading import load
from trivium.models import build
from trivium.presets import presets
from trivium.spec import (
    ClassifierHead,
    LMHead,
    MLMHead,
    NGramSpec,
    NSPHead,
    PoolerHead,
    RNNSpec,
    Rotary,
    SpanHead,
    TaggerHead,
)
from trivium.text import Tokenizer
from trivium.train.recipe import Recipe

pytestmark = pytest.mark.usefixtures("double_precision")

ENCODER = presets["bert-tiny"].replace(vocab_size=144)
DECODER = presets["gpt2-tiny"].replace(vocab_size=320)
TRANSLATOR = presets["transformer-tiny"].replace(vocab_size=320)
RNN = {"vocab_size": 144, "d_model": 7, "cell": "gru", "d_hidden": 7, "num_layers": 1}
NAMES = ("bad", "very good", "so so")
SOURCES = ["a dull film", "Ada wrote it", "\u4eca\u5929\u5929\u6c14", " ".join(TEXT), "weather"]
GREEDY = {"temperature": 0.0, "max_new_tokens": 12}


@functools.cache
def byte_bpe() -> Tokenizer:
    return Tokenizer.train("byte-bpe", texts=TEXT * 5, vocab_size=300, progress=False)


@pytest.fixture(scope="module")
def encoder():
    tokenizer = Tokenizer.train("wordpiece", texts=TEXT * 5, vocab_size=139, progress=False)
    return LanguageModel(ENCODER, shaken(ENCODER), tokenizer)


@pytest.fixture(scope="module")
def decoder():
    return LanguageModel(DECODER, shaken(DECODER), byte_bpe())


@pytest.fixture(scope="module")
def translator():
    settings = Settings(generation={"decoder_start_token_id": 0, "eos_token_id": [7, 9]})
    return LanguageModel(TRANSLATOR, shaken(TRANSLATOR), byte_bpe(), settings)


def label_model(kind: str = "t5", *, length: int | None = None) -> LanguageModel:
    """A random encoder-decoder, as if fine-tuned to generate the names of classes."""
    tokenizer = ours({"t5": "t5", "bart": "roberta", "transformer": "llama"}[kind])
    spec = small_spec(kind).replace(vocab_size=VOCABULARY)
    module, noise = build(spec, seed=3), torch.Generator().manual_seed(5)
    with torch.no_grad():
        for weight in module.parameters():
            weight += torch.empty(weight.shape).normal_(0.0, 0.2, generator=noise)
    options = {} if length is None else {"model_max_length": length}
    settings = Settings(tokenizer=options, config={"decoder_start_token_id": 0})
    settings = settings.with_labels(NAMES).with_task("classification", prefix="rate: ")
    return LanguageModel(spec, module, tokenizer, settings)


def test_capabilities_follow_from_family_and_heads():
    for spec, capabilities in (
        (ENCODER, "logits fill_mask score next_sentence embed"),
        (ENCODER.replace(heads=()), "embed"),
        (ENCODER.replace(heads=(PoolerHead(),)), "logits embed"),
        (ENCODER.replace(heads=(TaggerHead(num_labels=5),)), "logits tag embed"),
        (ENCODER.replace(heads=(SpanHead(),)), "logits answer embed"),
        (
            ENCODER.replace(heads=(ClassifierHead(num_labels=5, pooling="mean"),)),
            "logits classify embed",
        ),
        (DECODER, "logits generate score embed"),
        (TRANSLATOR, "logits generate translate score"),
        (RNNSpec(**RNN, heads=(LMHead(tied=True),)), "logits generate score embed"),
        (RNNSpec(**RNN, direction="both", heads=(MLMHead(),)), "logits fill_mask score embed"),
        (
            NGramSpec(vocab_size=144, order=3, d_model=7, d_hidden=11, heads=(LMHead(tied=True),)),
            "logits generate score embed",
        ),
    ):
        model = LanguageModel(spec, build(spec))
        assert model.capabilities == tuple(capabilities.split())
        for name in {"logits", "generate", "fill_mask", "score"} - {*model.capabilities}:
            match = f"cannot {name.replace('_', '-')}|has no head, which {name} need"
            with pytest.raises(SpecError, match=match):
                getattr(model, name)("x")
    with pytest.raises(SpecError, match="has the heads: mlm, nsp"):
        LanguageModel(ENCODER, build(ENCODER)).generate("x")
    for name, task, arguments in (
        ("classify", "classification", ("a",)),
        ("tag", "tagging", ("a",)),
        ("answer", "qa", "ab"),
    ):
        with pytest.raises(SpecError, match=rf"cannot {name}: .*`trivium finetune {task}` adds it"):
            getattr(LanguageModel(ENCODER, build(ENCODER)), name)(*arguments)


def test_logits_take_lists_arrays_and_tensors(encoder):
    rows = [[5, 7, 11], [13, 17, 19]]
    expected = encoder.logits(torch.tensor(rows))
    assert expected.shape == (2, 3, 144)
    assert torch.equal(encoder.logits(rows), expected)
    assert torch.equal(encoder.logits(np.array(rows, dtype=np.uint16)), expected)
    types = encoder.logits(rows, token_type_ids=[[0, 1, 1]] * 2)
    assert not torch.allclose(types, expected)
    padded = encoder.logits([[5, 7, 11, 0, 0]], attention_mask=[[1, 1, 1, 0, 0]])
    torch.testing.assert_close(padded[:, :3], expected[:1], rtol=1e-9, atol=1e-9)
    shifted = encoder.logits(rows, position_ids=[[0, 1, 2]] * 2)
    torch.testing.assert_close(shifted, expected, rtol=1e-9, atol=1e-9)
    assert not torch.allclose(encoder.logits(rows, position_ids=[[3, 1, 4]] * 2), expected)
    weights = encoder.attention_weights([[5, 7, 11, 0, 0]], attention_mask=[[1, 1, 1, 0, 0]])
    assert not any(layer[..., 3:].any() for layer in weights.encoder)


def test_logits_of_other_heads():
    heads = (
        ClassifierHead(num_labels=5, pooling="mean"),
        TaggerHead(num_labels=7),
        SpanHead(),
        NSPHead(),
    )
    spec = ENCODER.replace(heads=heads)
    model = LanguageModel(spec, shaken(spec))
    ids, mask = [[5, 7, 11], [13, 17, 0]], [[1, 1, 1], [1, 1, 0]]
    shapes = {head.kind: list(model.logits(ids, mask, head=head.kind).shape) for head in heads}
    expected = {"classifier": [2, 5], "tagger": [2, 3, 7], "span": [2, 3, 2], "nsp": [2, 2]}
    assert shapes == expected
    alone = model.logits([[13, 17]])
    torch.testing.assert_close(model.logits(ids, mask)[1:], alone, rtol=1e-9, atol=1e-9)
    with pytest.raises(SpecError, match='no head of kind "lm"'):
        model.logits(ids, head="lm")


@pytest.mark.filterwarnings("ignore:the tokenizer has")
def test_an_id_that_the_model_does_not_have_is_refused_where_it_occurs():
    """As with published BARTs, whose tokenizer has one more token than the model."""
    tokenizer = byte_bpe()
    last = max(tokenizer.encode(" ".join(TEXT), add_special_tokens=False).ids)
    fits = next(word for word in "abcdefgh" if max(tokenizer.encode(word).ids) < last)
    for base in (ENCODER, DECODER, TRANSLATOR):
        context = fits if base is TRANSLATOR else None
        spec = base.replace(vocab_size=last)
        with pytest.warns(UserWarning, match=f"but the model only {last}"):
            model = LanguageModel(spec, shaken(spec), tokenizer)
        score = partial(model.score, context=context)
        calls = [] if base is ENCODER else [score, partial(model.generate, **GREEDY)]
        for call in calls:
            call(fits)
            with pytest.raises(SpecError, match=rf"has id {last}, but this model takes 0 to"):
                call(" ".join(TEXT))
        if "embed" in model.capabilities:
            model.embed(fits)
            with pytest.raises(SpecError, match=rf"has id {last}, but this model takes 0 to"):
                model.embed(" ".join(TEXT))


def test_a_model_without_a_head_has_no_logits():
    spec = ENCODER.replace(heads=())
    with pytest.raises(SpecError, match="this model has no head, which logits need"):
        LanguageModel(spec, shaken(spec)).logits([[5]])


def test_logits_refuse(encoder, decoder, translator):
    for ids, what in (
        ([[5, 144]], "has 144, but this model takes 0 to 143"),
        ([[5, -1]], "has -1"),
        ([5, 7], r"must be \[B, T\]"),
        ([[]], "not empty|whole numbers"),
        ([[5], [7, 11]], "equal length"),
        ([[0.5]], "whole numbers"),
        ([[3] * 513], "513 tokens.*at most 512"),
    ):
        with pytest.raises(SpecError, match=what):
            encoder.logits(ids)
    with pytest.raises(SpecError, match=r"attention_mask is \[1, 2\], but input_ids is \[1, 3\]"):
        encoder.logits([[3, 5, 7]], attention_mask=[[1, 1]])
    with pytest.raises(SpecError, match="position_ids has 512, but this model takes 0 to 511"):
        encoder.logits([[3, 5]], position_ids=[[0, 512]])
    with pytest.raises(SpecError, match="token_type_ids"):
        decoder.logits([[3, 5]], token_type_ids=[[0, 0]])
    with pytest.raises(SpecError, match="takes no decoder_input_ids"):
        decoder.logits([[3]], decoder_input_ids=[[3]])
    for inputs, what in (
        ({}, "needs decoder_input_ids"),
        ({"decoder_input_ids": [[320]]}, "decoder_input_ids has 320"),
        (
            {"decoder_input_ids": [[0, 3]], "decoder_attention_mask": [[1]]},
            r"decoder_attention_mask is \[1, 1\], but decoder_input_ids is \[1, 2\]",
        ),
        ({"decoder_input_ids": [[3]], "token_type_ids": [[0]]}, "no token types"),
    ):
        with pytest.raises(SpecError, match=what):
            translator.logits([[5]], **inputs)
    with pytest.warns(UserWarning, match="300 ids, but the model only 144"):
        LanguageModel(ENCODER, encoder.module, byte_bpe())
    with pytest.raises(TokenizerError, match=r"has no tokenizer.*tokenizer\.json"):
        LanguageModel(ENCODER, encoder.module).fill_mask("The [MASK]")


def test_logits_of_an_encoder_decoder(translator):
    ids, mask = [[5, 7, 11], [13, 17, 0]], [[1, 1, 1], [1, 1, 0]]
    results = translator.logits(ids, mask, decoder_input_ids=[[0, 3], [0, 19]])
    alone = translator.logits([[13, 17]], decoder_input_ids=[[0, 19]])
    torch.testing.assert_close(results[1:], alone, rtol=1e-9, atol=1e-9)
    padded = translator.logits(
        [[13, 17]], decoder_input_ids=[[0, 19, 0]], decoder_attention_mask=[[1, 1, 0]]
    )
    torch.testing.assert_close(padded[:, :2], alone, rtol=1e-9, atol=1e-9)


def test_fill_mask_and_score(encoder, decoder):
    one = encoder.fill_mask("The [MASK] was cloudy.", top_k=3)
    assert [type(fill) for fill in one] == [MaskFill] * 3
    assert [len(f) for f in encoder.fill_mask("The <mask> was [MASK].", top_k=3)] == [3, 3]
    assert encoder.score("The weather was cloudy") < 0.0
    eos, text = decoder.tokenizer.eos_id, "The weather was cloudy. " * 60
    ids = [eos, *decoder.tokenizer.encode(text).ids]
    log_p = decoder.logits([ids])[0, :-1].double().log_softmax(-1)
    expected = float(log_p[range(len(ids) - 1), ids[1:]].sum())
    assert len(ids) > 512
    assert decoder.score(text) == pytest.approx(expected, rel=1e-9)
    assert encoder.score("") == decoder.score("") == 0.0


def test_score_after_a_context(decoder, translator):
    whole = decoder.tokenizer.encode("The weather was cloudy").ids
    after = len(decoder.tokenizer.encode("The weather").ids)
    log_p = decoder.logits([whole])[0, after - 1 : -1].log_softmax(-1)
    expected = float(log_p[range(len(whole) - after), whole[after:]].sum())
    for context, text in (("The weather", " was cloudy"), ("The weather ", "was cloudy")):
        assert decoder.score(text, context=context) == pytest.approx(expected, abs=1e-9)
    source, target = translator.source_tokenizer, translator.text_tokenizer
    ids = target.encode("cloudy", add_special_tokens=False).ids
    start = translator.generation_rules.decoder_start
    sources = [[*source.encode("The weather", add_special_tokens=False).ids, *source.suffix_ids]]
    logits = translator.logits(sources, decoder_input_ids=[[*start, *ids[:-1]]])
    log_p = logits[0, len(start) - 1 :].log_softmax(-1)
    expected = float(log_p[range(len(ids)), ids].sum())
    assert translator.score("cloudy", context="The weather") == pytest.approx(expected, abs=1e-9)
    with pytest.raises(SpecError, match="give a context"):
        translator.score("cloudy")
    with pytest.raises(TriviumError, match="context is empty"):
        decoder.score("cloudy", context="")
    with pytest.raises(TriviumError, match="has no tokens"):
        decoder.score("", context="The weather")


def greedy_ids(model: LanguageModel, ids: list[int], count: int, **inputs) -> list[int]:
    size, generated = model.tokenizer.vocab_size, []
    stops = {model.tokenizer.eos_id, *model.settings.ids("eos_token_id")}
    for _ in range(count):
        rows = [[*ids, *generated]]
        logits = model.logits(decoder_input_ids=rows, **inputs) if inputs else model.logits(rows)
        best = int(logits[0, -1, :size].argmax())
        if best in stops:
            break
        generated.append(best)
    return generated


def test_generate_continues_the_prompt(decoder, translator):
    prompts = ["The weather was cloudy", "", "\u4eca\u5929"]
    ids = list(decoder.tokenizer.encode(prompts[0]).ids)
    text = decoder.generate(prompts[0], **GREEDY)
    expected = [*ids, *greedy_ids(decoder, ids, 12)]
    assert prompts[0] + text == decoder.tokenizer.decode(expected)
    assert decoder.generate(prompts, **GREEDY) == [decoder.generate(p, **GREEDY) for p in prompts]
    source = [*translator.tokenizer.encode(prompts[0]).ids, *translator.tokenizer.suffix_ids]
    expected = greedy_ids(translator, [0], 12, input_ids=[source])
    assert len(expected) > 3
    assert translator.generate(prompts[0], **GREEDY) == translator.tokenizer.decode(expected)
    long = decoder.tokenizer.decode((ids * 300)[:1020])
    with pytest.warns(match="a text ends because the model's 1024 positions do"):
        several = decoder.generate([long, "The"], temperature=0.0, max_new_tokens=30)
    with pytest.warns(match="positions"):
        assert several[0] == decoder.generate(long, temperature=0.0, max_new_tokens=30)
    for refused in (decoder.generate, lambda prompt: next(decoder.stream(prompt))):
        with pytest.raises(SpecError, match=r"tokens.*at most 1024"):
            refused("The weather was cloudy yesterday. " * 300)


def test_texts_longer_than_what_was_trained_get_a_warning(decoder):
    trained = Settings(config={"trained_length": 16})
    model = LanguageModel(DECODER, decoder.module, decoder.tokenizer, trained)
    room = 16 - len(decoder.tokenizer.encode("The").ids)
    options = {"temperature": 0.0, "min_new_tokens": room}
    model.generate("The", max_new_tokens=room, **options)  # no warning
    with pytest.warns(
        match="with its prompt is longer than the 16 tokens that the model was trained on"
    ):
        model.generate("The", max_new_tokens=room + 1, **options)


def test_seeds_streams_and_drafts(decoder):
    options = {"max_new_tokens": 30, "temperature": 1.2, "top_p": 0.99}
    text = decoder.generate("The", seed=7, **options)
    assert text != decoder.generate("The", seed=8, **options)
    torch.manual_seed(0)
    random = {**options, "temperature": 9.0}
    assert len({*decoder.generate(["The"] * 3, **random), decoder.generate("The", **random)}) == 4
    two = decoder.generate(["The", "The"], seed=7, **options)
    assert two == [text, decoder.generate("The", seed=8, **options)]
    pieces = list(decoder.stream("The", seed=7, **options))
    assert "".join(pieces) == text
    assert len(pieces) > 1
    for draft in (PromptLookup(), DraftModel(decoder.module)):
        assert decoder.generate("The", seed=7, draft=draft, **options) == text
    with pytest.raises(TriviumError, match="top_p"):
        decoder.generate("The", top_p=3)


def test_an_engine_that_is_kept_holds_no_requests_of_earlier_calls(decoder, monkeypatch):
    model = LanguageModel(DECODER, decoder.module, decoder.tokenizer, compile=True)
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    expected = decoder.generate("The", **GREEDY)
    with pytest.raises(SpecError, match="at most 1024"):
        model.generate(["The", "The weather was cloudy yesterday. " * 300], **GREEDY)
    unused, stopped = model.stream("The", **GREEDY), model.stream("The", **GREEDY)
    next(stopped)
    stopped.close()
    engine = model.engine_for([], slots=8)
    assert not engine.busy
    assert model.generate("The", **GREEDY) == "".join(unused) == expected
    assert model.engine_for([], slots=8) is engine


def test_an_engine_is_as_long_as_its_requests(decoder):
    params = SamplingParams(max_new_tokens=5000)
    requests = [GenerationRequest([3] * length, params) for length in (2, 700)]
    assert decoder.engine_for(requests, slots=8).slot_length == DECODER.max_length
    stack = DECODER.decoder.with_layers(mixer=DECODER.decoder.mixers[0].replace(positions=Rotary()))
    spec = DECODER.replace(embedding=DECODER.embedding.replace(positions=None), decoder=stack)
    rotary = LanguageModel(spec, build(spec), decoder.tokenizer)
    engine = rotary.engine_for(requests, slots=8)
    assert (engine.slots, engine.slot_length) == (2, 5700)


def test_what_a_decoder_starts_and_stops_with(decoder, translator):
    first = greedy_ids(decoder, list(decoder.tokenizer.encode("The weather").ids), 5)
    settings = Settings(generation={"eos_token_id": first[-1]})
    stopping = LanguageModel(DECODER, decoder.module, decoder.tokenizer, settings)
    text = stopping.generate("The weather", **GREEDY)
    assert text == decoder.tokenizer.decode(first[: first.index(first[-1])])
    bos = Settings(generation={"decoder_start_token_id": byte_bpe().bos_id})
    texts = [
        LanguageModel(TRANSLATOR, translator.module, byte_bpe(), s).generate("The", **GREEDY)
        for s in (None, bos)
    ]
    assert texts[0] == texts[1]
    nameless = Tokenizer.train(
        "byte-bpe", texts=TEXT, vocab_size=270, special_tokens=["<x>"], progress=False
    )
    with pytest.raises(TokenizerError, match="unknown what this decoder begins with"):
        LanguageModel(TRANSLATOR, translator.module, nameless).generate("The")


def test_translate_follows_the_settings(monkeypatch):
    model = label_model("bart")
    assert model.beam_params() == BeamSearchParams()
    model.settings = model.settings.with_task("summarization", prefix="sum: ")
    options = {"num_beams": 2, "max_new_tokens": 7}
    texts = model.translate(SOURCES[:3], **options)
    assert texts == [model.translate(text, **options) for text in SOURCES[:3]]
    assert model.translate([]) == []
    # The default limit is a text's own, too.
    with pytest.warns(UserWarning, match="ends at its limit"):
        together = model.translate(SOURCES[:3])
    with pytest.warns(UserWarning, match="ends at its limit"):
        alone = [model.translate(text) for text in SOURCES[:3]]
    assert together == alone
    assert model.translate(SOURCES[:3], max_new_tokens=256) != together
    calls = []
    model.translate(SOURCES[:2], progress=lambda *counts: calls.append(counts), **options)
    assert calls[-1] == (2, 2)
    settings = Settings(config=model.settings.config).with_task("summarization", prefix="")
    bare = LanguageModel(model.spec, model.module, model.tokenizer, settings)
    assert bare.translate(f"sum: {SOURCES[0]}", **options) == texts[0]
    config = {"num_beams": 3, "length_penalty": 0.0, "no_repeat_ngram_size": 2}
    bare.settings = Settings(generation={**config, "early_stopping": True})
    expected = BeamSearchParams(3, 0.0, early_stopping=True, no_repeat_ngram=2)
    assert bare.beam_params() == expected


@pytest.mark.parametrize("kind", ["t5", "bart", "transformer"])
def test_encoder_decoders_classify_by_the_likelihood_of_names(kind):
    model = label_model(kind, length=23)
    tokenizer = model.text_tokenizer
    around = list(tokenizer.encode("").ids)  # the tokens that its template adds
    before = around[: kind != "t5"]
    behind = around[len(before) :]
    with pytest.warns(UserWarning, match="1 of 5 texts are longer than the 23 tokens"):
        results = model.classify(SOURCES)
    for text, each in zip(SOURCES, results, strict=True):
        ids = list(tokenizer.encode(f"rate: {text}", add_special_tokens=False).ids)
        source = [*before, *ids[: 23 - len(before) - len(behind)], *behind]
        likelihoods = []
        for name in NAMES:
            name_ids = tokenizer.encode(name, add_special_tokens=False).ids
            target = [*name_ids, tokenizer.eos_id]
            logits = model.logits([source], decoder_input_ids=[[0, *target[:-1]]])[0]
            log_p = logits.double().log_softmax(-1)
            likelihoods.append(log_p[range(len(target)), target].sum())
        shares = torch.stack(likelihoods).softmax(0)
        assert list(each.scores) == [NAMES[n] for n in shares.argsort(descending=True)]
        assert each.score == pytest.approx(shares.max().item(), abs=1e-9)


def test_likelihoods_of_names_do_not_depend_on_the_other_texts():
    model = label_model()
    for each, text in zip(model.classify(SOURCES), SOURCES, strict=True):
        assert each.scores == pytest.approx(model.classify(text).scores, rel=1e-9)
    assert model.classify("a", "b") == model.classify("a b")
    assert classifier_logits(model, []).shape == (0, 3)
    # Published BARTs and T5s have names of labels without having been fine-tuned.
    names = Settings(config={"id2label": {"0": "LABEL_0", "1": "LABEL_1"}})
    unlabelled = LanguageModel(model.spec, model.module, model.tokenizer, names)
    assert "classify" not in unlabelled.capabilities


def test_a_source_tokenizer_of_its_own_reads_everything(translator):
    source = Tokenizer.train("byte-bpe", texts=TEXT[::-1] * 9, vocab_size=280, progress=False)
    spec = small_spec("transformer-two-vocabularies").replace(vocab_size=320, source_vocab_size=290)
    settings = Settings(config={"decoder_start_token_id": 0}).with_labels(NAMES)
    settings = settings.with_task("classification", prefix="")
    model = LanguageModel(spec, shaken(spec), byte_bpe(), settings, source_tokenizer=source)
    assert model.reading("special").source_tokenizer is source
    seen, encode = [], model.module.encode
    model.module.encode = lambda ids, **inputs: seen.append(ids.tolist()) or encode(ids, **inputs)
    text = "The weather was cloudy"
    model.generate(text, max_new_tokens=3)
    model.translate(text, max_new_tokens=3)
    model.classify(text)
    ids = list(source.encode(text, add_special_tokens=False).ids)
    assert ids != list(byte_bpe().encode(text, add_special_tokens=False).ids)
    assert seen == [[[*source.prefix_ids, *ids, *source.suffix_ids]]] * 3
    with pytest.raises(SpecError, match="no Hugging Face family has all parts"):
        model.save_hf("nowhere")
    with pytest.warns(UserWarning, match="280 ids, but the model only 53"):
        LanguageModel(
            small_spec("transformer-two-vocabularies"), model.module, source_tokenizer=source
        )


def test_labels_of_classifiers(tmp_path):
    for config in ({}, {"id2label": {"0": "LABEL_0"}}):  # a single label is a number
        hf = theirs("BertForSequenceClassification", num_labels=1)
        model = as_ours(hf, "bert", **config)
        results = model.classify("a text", "and another")
        assert (results.label, results.scores) == ("", {})
        assert results.score == classifier_logits(model, [("a text", "and another")]).item()
    hf = theirs("GPT2ForSequenceClassification", num_labels=3, pad_token_id=VOCABULARY - 1)
    plain = as_ours(hf, "gpt2")
    settings = Settings().with_labels(NAMES).with_task("classification", prefix="")
    tuned = LanguageModel(plain.spec, plain.module, plain.tokenizer, settings)
    ids = list(plain.text_tokenizer.encode(SOURCES[0]).ids)
    for model, row in ((plain, ids), (tuned, [*ids, plain.text_tokenizer.eos_id])):
        with torch.no_grad():
            expected = hf(torch.tensor([row])).logits[0]
        results = classifier_logits(model, [(SOURCES[0], None)])[0]
        torch.testing.assert_close(results, expected, rtol=1e-9, atol=1e-9)
    head = ClassifierHead(num_labels=3, pooling="last", bias=False)
    spec = DECODER.replace(heads=(*DECODER.heads, head))
    both = LanguageModel(spec, build(spec), byte_bpe(), Settings().with_labels(NAMES))
    assert {"classify", "generate"} <= {*both.capabilities}
    assert {*both.classify("a").scores} == {*NAMES}
    with pytest.warns(UserWarning, match="no longer the next token"):
        exported = load(both.save_hf(tmp_path / "hf"))
    assert "generate" not in exported.capabilities
    torch.testing.assert_close(
        classifier_logits(exported, [("a", None)]), classifier_logits(both, [("a", None)])
    )


def test_public_names():
    assert dir(trivium) == sorted(trivium.__all__)
    for name in trivium.__all__:
        assert getattr(trivium, name) is not None
    with pytest.raises(AttributeError, match='"presets"'):
        trivium.preset  # noqa: B018
    program = (
        "import trivium, sys;"
        "assert trivium.__version__;"
        "assert trivium.Tokenizer.__name__ == 'Tokenizer';"
        "assert 'torch' not in sys.modules;"
        "import trivium.presets;"
        "from trivium.presets import catalogue;"
        "assert trivium.presets['gpt2'].d_model == 768;"
        "import json; print(json.dumps(dir(trivium)))"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout) == sorted(trivium.__all__)


def test_changes_in_the_help_of_public_functions_are_keys():
    keys = {key.name for key in iter_keys(Recipe)}
    for function in (trivium.pretrain, trivium.finetune):
        examples = re.findall(r'\["([\w.]+)=', function.__doc__)
        assert examples
        assert {*examples} <= keys
