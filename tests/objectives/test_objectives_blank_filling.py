"""Blank filling: the example of its paper by hand, what sees what, how often, and filled blanks."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from double import double_precision
from small_models import MAX_LENGTH, SPECS, VOCABULARY, random_model

from trivium import spec
from trivium.data.batch import IGNORE_INDEX, RowBatch
from trivium.data.row_order import RowRandom
from trivium.errors import RecipeError, TriviumError
from trivium.language_model import LanguageModel
from trivium.objectives import default_objective, to_device
from trivium.objectives.blank_filling import BlankFilling, blank_out_spans
from trivium.presets import presets
from trivium.spec import TwoDimensional
from trivium.text import Tokenizer
from trivium.text.vocabulary import Vocabulary

MASK, START, END = 1, 2, 3
VOCAB = Vocabulary(size=VOCABULARY, mask_id=MASK, bos_id=START, eos_id=END)
CPU = torch.device("cpu")


def glm() -> spec.TransformerSpec:
    positions = TwoDimensional(max_length=MAX_LENGTH)
    return SPECS["gpt2"].replace(embedding=spec.Embedding(positions=positions))


BOTH = pytest.mark.parametrize("described", [glm(), SPECS["chatglm"]], ids=["glm", "chatglm"])


def test_the_example_of_the_paper():
    """Figure 2 of Du et al. 2022: of x1 ... x6 the spans x3 and x5 x6, the second one first."""
    ids = np.array([11, 12, 13, 14, 15, 16])
    row = blank_out_spans(ids, [(2, 3), (4, 6)], [1, 0], VOCAB)
    assert row.prefix_length == 5
    assert row.input_ids.tolist() == [11, 12, MASK, 14, MASK, START, 15, 16, START, 13]
    assert row.positions[:, 0].tolist() == [0, 1, 2, 3, 4, 4, 4, 4, 2, 2]  # theirs count from 1
    assert row.positions[:, 1].tolist() == [0, 0, 0, 0, 0, 1, 2, 3, 1, 2]
    assert row.labels.tolist() == [IGNORE_INDEX] * 5 + [15, 16, END, 13, END]


def restored(ids, positions, given, labels):
    """The row before its spans were taken out, and their sizes."""
    row, spans = ids[:given].tolist(), {}
    for place, label in zip(positions[given:, 0], labels[given:], strict=True):
        if label >= 0:
            spans.setdefault(int(place), []).append(int(label))
    assert all(span.pop() == END and END not in span for span in spans.values())
    assert [place for place, each in enumerate(row) if each == MASK] == sorted(spans)
    pieces = [spans.get(place, [token]) for place, token in enumerate(row)]
    return [*itertools.chain(*pieces)], [len(span) for span in spans.values()], list(spans)


def test_every_row_is_whole_and_its_noise_is_its_own():
    generator = np.random.default_rng(0)
    ids, lengths = generator.integers(4, VOCABULARY, (90, 200)), np.full(90, 200) - np.arange(90)
    lengths[:3] = 1, 2, 3
    rows, noise = RowBatch(ids, lengths), RowRandom(7, np.arange(90))
    whole, halves, sizes, reversals, spans_only = 0, [], [], [], []
    batch = BlankFilling().prepare(rows, noise, VOCAB)
    arrays = (batch.input_ids, batch.position_ids, batch.prefix_lengths, batch.labels)
    for i, (tokens, positions, given, labels) in enumerate(zip(*arrays, strict=True)):
        alone = BlankFilling().prepare(rows.slice_rows(i, i + 1), noise.slice_rows(i, i + 1), VOCAB)
        width = alone.input_ids.shape[1]
        for mine, all_rows in zip(alone.arrays().values(), batch.arrays().values(), strict=True):
            assert (mine[0] == (all_rows[i] if mine.ndim == 1 else all_rows[i, :width])).all()
        if given == 0:
            whole += 1
            text = tokens[: lengths[i]]
            assert labels[: lengths[i]].tolist() == [*text[1:], IGNORE_INDEX]
            assert positions[: lengths[i], 1].tolist() == [*range(1, lengths[i] + 1)]
            assert not positions[:, 0].any()
            continue
        text, row_sizes, places = restored(tokens, positions, given, labels)
        assert text == ids[i, : lengths[i]].tolist()
        if len(row_sizes) == 1 and row_sizes[0] >= lengths[i] / 2 and lengths[i] > 3:
            halves.append(row_sizes[0] / lengths[i])
        elif lengths[i] > 3:
            spans_only.append(sum(row_sizes) / lengths[i])
            sizes += row_sizes
            reversals.append((np.diff(places) < 0).mean())
    assert 0.15 < whole / 90 < 0.35
    assert 0.15 < len(halves) / 90 < 0.35
    assert 0.7 < np.mean(halves) < 0.8
    assert np.allclose(spans_only, 0.15, atol=0.004)
    # Poisson without 0, a little less since the last one is cut.
    assert np.mean(sizes) == pytest.approx(3 / (1 - math.exp(-3)), rel=0.08)
    assert 0.3 < np.mean(reversals) < 0.7


@BOTH
@double_precision()
def test_part_b_sees_part_a_and_what_is_before_it_and_part_a_sees_itself(described):
    model, generator = random_model(described), np.random.default_rng(1)
    rows = RowBatch(generator.integers(4, VOCABULARY, (1, 23)), np.array([23]))
    objective = BlankFilling(document_share=0.0, whole_share=0.0, probability=0.4)
    batch = objective.prepare(rows, RowRandom(0, np.arange(1)), VOCAB)
    assert batch.prefix_lengths is not None
    inputs, given = to_device(batch, CPU).inputs, int(batch.prefix_lengths[0])
    for context in (torch.no_grad, torch.enable_grad):
        with context():
            before = model(**inputs)[0]
            for column in range(batch.input_ids.shape[1]):
                ids = inputs["input_ids"].clone()
                ids[0, column] = (ids[0, column] + 1) % VOCABULARY
                change = (model(**inputs | {"input_ids": ids})[0] - before).abs().amax(1)
                first = 0 if column < given else column
                assert (change[first:] > 1e-9).all()
                assert (change[:first] < 1e-12).all()


@double_precision()
def test_a_text_without_positions_is_one_span():
    model, ids = random_model(glm()), torch.randint(4, VOCABULARY, (2, 9))
    places = torch.arange(1, 10)
    positions = torch.stack((torch.zeros_like(places), places), -1)[None]
    tokens, vectors = model.tokens.weight[ids], model.decoder.embedding.positions
    expected = tokens + vectors.weight[0] + vectors.in_span[places]
    close = {"rtol": 1e-12, "atol": 1e-12}
    torch.testing.assert_close(model.decoder.embedding(tokens, places[None] - 1), expected, **close)
    torch.testing.assert_close(model(ids), model(ids, position_ids=positions), **close)


@BOTH
@double_precision()
def test_blanks_are_filled_one_after_another(described):
    """Every token is the most probable one after the whole row before it, read at once."""
    special = ("<s>", "</s>", "<mask>")
    text = "the cat sat on the mat and the dog lay on the rug"
    tokenizer = Tokenizer.train(
        "whitespace",
        texts=[text],
        vocab_size=40,
        special_tokens=("<unk>", *special),
        progress=False,
    )
    vocabulary = tokenizer.vocabulary
    described = described.replace(vocab_size=tokenizer.vocab_size)
    if described.max_length:
        positions = TwoDimensional(max_length=64)
        described = described.replace(embedding=spec.Embedding(positions=positions))
    lm = LanguageModel(described, random_model(described, seed=3), tokenizer)
    gaps = "the <mask> on the [MASK] lay"
    assert "fill_mask" in lm.capabilities
    (filled,) = lm.fill_mask(gaps)
    ids = tokenizer.encode(gaps.replace("[MASK]", "<mask>"), add_special_tokens=False).ids
    ids = [*tokenizer.prefix_ids, *ids, *tokenizer.suffix_ids]
    given, positions, logs, contents = len(ids), [(place, 0) for place in range(len(ids))], [], []
    for blank in [place for place, each in enumerate(ids) if each == vocabulary.mask_id]:
        content, token = [], vocabulary.start_id
        while len(content) < 12 and token != vocabulary.end_id:
            ids, positions = [*ids, token], [*positions, (blank, len(content) + 1)]
            with torch.no_grad():
                hidden = lm.module(
                    torch.tensor([ids]),
                    position_ids=torch.tensor([positions]),
                    prefix_lengths=torch.tensor([given]),
                )
            scores = lm.module.logits(hidden)[0, -1].detach().log_softmax(-1)
            token = int(scores.argmax())
            content.append(token)
            logs.append(float(scores[token]))
        contents.append(tokenizer.decode(content).strip())
    assert filled.token == " | ".join(contents)
    assert filled.score == pytest.approx(math.exp(np.mean(logs)), rel=1e-9)
    for content in contents:
        gaps = gaps.replace("<mask>", content, 1).replace("[MASK]", "<mask>")
    assert filled.sequence.split() == gaps.split()
    with pytest.raises(TriviumError, match="there is no <mask>"):
        lm.fill_mask("the cat")


def test_what_it_trains():
    assert default_objective(presets["glm-mini"]).kind == "blank-filling"
    assert default_objective(presets["chatglm-mini"]).kind == "blank-filling"
    assert default_objective(presets["chatglm2-mini"]).kind == "causal"
    with pytest.raises(RecipeError, match='two-dimensional": use glm-mini'):
        BlankFilling().heads(presets["gpt2-mini"])
    with pytest.raises(RecipeError, match="the special token <mask>"):
        BlankFilling().check_tokens(Vocabulary(size=9, bos_id=0, eos_id=1))
    with pytest.raises(ValueError, match="at most 1"):
        BlankFilling(document_share=0.6, whole_share=0.6)
