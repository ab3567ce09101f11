"""`LanguageModel` on every family and head: what it can do, and what it then says."""

from __future__ import annotations

import pytest
import torch
from shaken_models import TEXT, shaken

from trivium.errors import SpecError, TokenizerError
from trivium.interop.settings import Settings
from trivium.language_model import LanguageModel, load
from trivium.models import build
from trivium.presets import presets
from trivium.spec import (
    ClassifierHead,
    FanIn,
    LMHead,
    MLMHead,
    NGramSpec,
    NSPHead,
    PoolerHead,
    RNNSpec,
    SpanHead,
    TaggerHead,
)
from trivium.text import Tokenizer

RNN = {"vocab_size": 128, "d_model": 7, "cell": "gru", "d_hidden": 11, "num_layers": 2}
BODY = presets["bert-tiny"].replace(vocab_size=128)
TRANSLATOR = presets["t5-tiny"].replace(vocab_size=320, initialization=FanIn())


@pytest.fixture(scope="module")
def byte_bpe():
    return Tokenizer.train("byte-bpe", texts=TEXT * 5, vocab_size=300, progress=False)


@pytest.fixture(scope="module")
def decoder(byte_bpe):
    spec = presets["gpt2-tiny"].replace(vocab_size=320)
    return LanguageModel(spec, shaken(spec), byte_bpe)


def test_no_head():
    spec = BODY.replace(heads=())
    with pytest.raises(SpecError, match="no head, which logits needs"):
        LanguageModel(spec, build(spec)).logits([[3]])


@pytest.mark.parametrize(
    ("spec", "verbs"),
    [
        (BODY, ("logits", "fill_mask", "score", "embed")),
        (BODY.replace(heads=()), ("embed",)),
        (BODY.replace(heads=(PoolerHead(),)), ("logits", "embed")),
        (BODY.replace(heads=(TaggerHead(num_labels=5),)), ("logits", "tag", "embed")),
        (BODY.replace(heads=(MLMHead(), NSPHead())), ("logits", "fill_mask", "score", "embed")),
        (BODY.replace(heads=(SpanHead(),)), ("logits", "answer", "embed")),
        (
            BODY.replace(heads=(ClassifierHead(num_labels=5, pooling="mean"),)),
            ("logits", "classify", "embed"),
        ),
        (presets["gpt2-tiny"].replace(vocab_size=128), ("logits", "generate", "score", "embed")),
        (TRANSLATOR, ("logits", "generate", "translate")),
        (RNNSpec(**RNN, heads=(LMHead(tied=True),)), ("logits", "generate", "score", "embed")),
        (
            RNNSpec(**RNN, direction="both", heads=(MLMHead(),)),
            ("logits", "fill_mask", "score", "embed"),
        ),
        (
            NGramSpec(vocab_size=128, order=3, d_model=7, d_hidden=11, heads=(LMHead(tied=True),)),
            ("logits", "generate", "score", "embed"),
        ),
    ],
)
def test_verbs_by_family_and_heads(spec, verbs):
    model = LanguageModel(spec, build(spec))
    assert model.verbs == verbs
    for verb in {"logits", "generate", "fill_mask", "score"} - {*verbs}:
        with pytest.raises(SpecError, match=f"cannot {verb}|which {verb} needs"):
            getattr(model, verb)("x")


def test_logits_of_other_heads():
    heads = (
        ClassifierHead(num_labels=5, pooling="mean"),
        TaggerHead(num_labels=7),
        SpanHead(),
        NSPHead(),
    )
    spec = BODY.replace(heads=heads)
    model = LanguageModel(spec, shaken(spec))
    ids, mask = [[5, 7, 11], [13, 17, 0]], [[1, 1, 1], [1, 1, 0]]
    assert model.logits(ids).shape == (2, 5)
    shapes = {head.kind: list(model.logits(ids, mask, head=head.kind).shape) for head in heads}
    assert shapes == {
        "classifier": [2, 5],
        "tagger": [2, 3, 7],
        "span": [2, 3, 2],
        "nsp": [2, 2],
    }
    alone = model.logits([[13, 17]])
    torch.testing.assert_close(model.logits(ids, mask)[1:], alone, atol=1e-4, rtol=1e-4)
    with pytest.raises(SpecError, match="no lm head; it has: classifier, tagger"):
        model.logits(ids, head="lm")
    with pytest.raises(SpecError, match=r"no head over the vocabulary .*cannot fill_mask"):
        model.fill_mask("The [MASK]")


@pytest.fixture(scope="module")
def translator(byte_bpe):
    settings = Settings(generation={"decoder_start_token_id": 0, "eos_token_id": [7, 9]})
    return LanguageModel(TRANSLATOR, shaken(TRANSLATOR), byte_bpe, settings)


def test_logits_of_an_encoder_decoder(translator):
    ids, decoded = [[5, 7, 11], [13, 17, 0]], [[0, 3], [0, 19]]
    mask = [[1, 1, 1], [1, 1, 0]]
    found = translator.logits(ids, mask, decoder_input_ids=decoded)
    assert found.shape == (2, 2, 320)
    alone = translator.logits([[13, 17]], decoder_input_ids=[[0, 19]])
    torch.testing.assert_close(found[1:], alone, atol=1e-4, rtol=1e-4)
    padded = translator.logits(
        [[13, 17]],
        decoder_input_ids=[[0, 19, 0]],
        decoder_attention_mask=[[1, 1, 0]],
    )
    torch.testing.assert_close(padded[:, :2], alone, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("inputs", "what"),
    [
        ({}, "an encoder with a decoder and needs decoder_input_ids"),
        ({"decoder_input_ids": [[320]]}, "decoder_input_ids has 320"),
        (
            {"decoder_input_ids": [[0, 3]], "decoder_attention_mask": [[1]]},
            r"decoder_attention_mask is \[1, 1\], but decoder_input_ids is \[1, 2\]",
        ),
        ({"decoder_input_ids": [[3]], "token_type_ids": [[0]]}, "no token types"),
    ],
)
def test_logits_of_an_encoder_decoder_refuse(translator, inputs, what):
    with pytest.raises(SpecError, match=what):
        translator.logits([[5]], **inputs)


def test_decoder_ids_where_there_is_one_stack(decoder):
    with pytest.raises(SpecError, match="a decoder and takes no decoder_input_ids"):
        decoder.logits([[3]], decoder_input_ids=[[3]])


def test_an_encoder_decoder_answers_with_a_text_of_its_own(translator):
    tokenizer, prompt = translator.tokenizer, "The weather was cloudy"
    source = [*tokenizer.encode(prompt).ids, *tokenizer.suffix_ids]
    ids = [0]
    for _ in range(11):
        scores = translator.logits([source], decoder_input_ids=[ids])[0, -1]
        best = int(scores[: tokenizer.vocab_size].argmax())
        if best in (7, 9, tokenizer.eos_id):
            break
        ids.append(best)
    wanted = tokenizer.decode(ids[1:])
    settings = {"max_new_tokens": 11, "temperature": 0}
    assert len(ids) > 3
    assert translator.generate(prompt, **settings) == wanted
    assert "".join(translator.stream(prompt, **settings)) == wanted
    prompts = [prompt, "今天天气", "a"]
    together = translator.generate(prompts, **settings)
    assert together == [translator.generate(prompt, **settings) for prompt in prompts]


def test_what_a_decoder_begins_with(translator, byte_bpe, tmp_path):
    model = load(translator.save(tmp_path / "model"))
    assert model.settings.decoder_start == (0,)
    assert model.settings.stop_ids == {7, 9}
    forced = Settings(generation={"bos_token_id": 3, "forced_bos_token_id": 5})
    assert forced.decoder_start == (3, 5)
    prompt, options = "The weather", {"max_new_tokens": 7, "temperature": 0}
    by_default = LanguageModel(TRANSLATOR, translator.module, byte_bpe)
    told = LanguageModel(
        TRANSLATOR,
        translator.module,
        byte_bpe,
        Settings(generation={"decoder_start_token_id": byte_bpe.bos_id}),
    )
    assert by_default.generate(prompt, **options) == told.generate(prompt, **options)
    nameless = Tokenizer.train(
        "byte-bpe", texts=TEXT, vocab_size=270, special_tokens=["<x>"], progress=False
    )
    with pytest.raises(TokenizerError, match="nothing says what this decoder begins with"):
        LanguageModel(TRANSLATOR, translator.module, nameless).generate("The")


def test_generation_stops_at_the_ids_of_the_settings(decoder):
    text = decoder.generate("The weather", max_new_tokens=20, temperature=0)
    ids = list(decoder.tokenizer.encode("The weather").ids)
    for _ in range(5):
        scores = decoder.logits([ids])[0, -1, : decoder.tokenizer.vocab_size]
        ids.append(int(scores.argmax()))
    stopping = LanguageModel(
        decoder.spec,
        decoder.module,
        decoder.tokenizer,
        Settings(generation={"eos_token_id": ids[-1]}),
    )
    shorter = stopping.generate("The weather", max_new_tokens=20, temperature=0)
    assert text.startswith(shorter)
    assert len(shorter) < len(text)


def test_models_that_hugging_face_has_not(tmp_path):
    spec = RNNSpec(**RNN, heads=(LMHead(tied=True),))
    model = LanguageModel(spec, build(spec))
    with pytest.raises(SpecError, match="only Transformers can be exported"):
        model.save_hf(tmp_path / "out")
    again = load(model.save(tmp_path / "ours"))
    assert again.spec == spec
    torch.testing.assert_close(again.logits([[3, 5]]), model.logits([[3, 5]]))
