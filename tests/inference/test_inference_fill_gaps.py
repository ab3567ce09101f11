"""Gaps that encoder-decoders fill: where the fills stand, in which order, and how they are told."""

from __future__ import annotations

import pytest
import torch

from trivium.errors import TriviumError
from trivium.inference.beam import Beams, beam_search
from trivium.inference.fill_gaps import fill_gaps, told_between
from trivium.language_model import LanguageModel
from trivium.models import build
from trivium.presets import presets
from trivium.text import Tokenizer

TEXT = "the cat sat on the mat and the dog lay on the rug near a warm fire in the house ."


@pytest.fixture(scope="module")
def t5() -> LanguageModel:
    special = ("<pad>", "</s>", "<unk>", *(f"<extra_id_{n}>" for n in range(5)))
    return model_of(
        "t5-tiny",
        Tokenizer.train("whitespace", texts=[TEXT], vocab_size=60, special_tokens=special),
    )


@pytest.fixture(scope="module")
def bart() -> LanguageModel:
    special = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
    return model_of(
        "bart-tiny",
        Tokenizer.train("whitespace", texts=[TEXT], vocab_size=60, special_tokens=special),
    )


def model_of(preset: str, tokenizer: Tokenizer) -> LanguageModel:
    spec = presets[preset].replace(vocab_size=64).with_dropout(0.0)
    module = build(spec, seed=3)
    with torch.no_grad():
        for weight in module.parameters():
            weight.add_(
                0.05 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(1))
            )
    return LanguageModel(spec, module, tokenizer)


def test_the_fill_is_what_beam_search_writes_after_the_sentinel(t5: LanguageModel) -> None:
    tokenizer = t5.text_tokenizer
    fills = t5.fill_mask("the cat <extra_id_0> the mat", top_k=3)
    sentinels = tokenizer.sentinel_ids
    source = tokenizer.encode("the cat <extra_id_0> the mat", add_special_tokens=False).ids
    (found,) = beam_search(
        t5.module,
        [[*source, tokenizer.eos_id]],
        beams=Beams(num_beams=5, num_return=3, min_new_tokens=1),
        max_new_tokens=12,
        stop_ids={tokenizer.eos_id, *sentinels[1:]},
        vocab_size=tokenizer.vocab_size,
        decoder_start=(tokenizer.pad_id, sentinels[0]),
    )
    for fill, hypothesis in zip(fills, found, strict=True):
        words = tokenizer.decode(hypothesis.ids).strip()
        assert fill.token == words
        assert " ".join(fill.sequence.split()) == " ".join(f"the cat {words} the mat".split())
        assert fill.score == pytest.approx(torch.tensor(hypothesis.score).exp().item())
    assert [fill.score for fill in fills] == sorted((f.score for f in fills), reverse=True)


def test_masks_are_sentinels_in_their_order(t5: LanguageModel) -> None:
    named = t5.fill_mask("the <extra_id_0> sat on <extra_id_1> rug")
    assert t5.fill_mask("the <mask> sat on <mask> rug") == named
    assert all(fill.token.count(" | ") == 1 for fill in named)


def test_bart_writes_the_whole_text(bart: LanguageModel) -> None:
    fills = bart.fill_mask("the cat <mask> the mat", top_k=2)
    assert len(fills) == 2
    assert all("<mask>" not in fill.sequence for fill in fills)
    assert "fill_mask" in bart.verbs


@pytest.mark.parametrize(
    ("pieces", "text", "expected"),
    [
        (["The", "sat."], "The old cat sat.", ["old cat"]),
        (["", "sat."], "A cat sat.", ["A cat"]),
        (["The cat", ""], "The cat sat here", ["sat here"]),
        (["a", "a", "a"], "a b a c a", ["b", "c"]),
        (["The", "sat."], "Nobody was here.", [""]),
        (["one", "two"], "two one", [""]),
    ],
)
def test_what_stands_between(pieces: list[str], text: str, expected: list[str]) -> None:
    assert told_between(pieces, text) == expected


def test_without_a_gap(t5: LanguageModel, bart: LanguageModel) -> None:
    with pytest.raises(TriviumError, match="no gap"):
        t5.fill_mask("the cat")
    with pytest.raises(TriviumError, match="no <mask>"):
        bart.fill_mask("the cat")
    with pytest.raises(TriviumError, match="more than the 5 gaps"):
        t5.fill_mask(" ".join(["<mask>"] * 6))
    with pytest.raises(TriviumError, match="top_k"):
        fill_gaps(t5.module, t5.text_tokenizer, "<mask>", decoder_start=(0,), top_k=0)
