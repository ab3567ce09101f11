"""Masked language modelling, sentence pairs and replaced tokens: shares, pairs, both losses."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from batches import rows_of
from small_models import BIDIRECTIONAL, VOCABULARY, small_model, small_spec
from torch.nn import functional as F

from trivium import spec
from trivium.data.batch import IGNORE_INDEX, RowBatch
from trivium.data.row_order import RowRandom
from trivium.data.rows import Rows
from trivium.errors import RecipeError
from trivium.models.electra import build_with_generator
from trivium.objectives import to_device
from trivium.objectives.masked import Masked
from trivium.objectives.replaced_token import ReplacedToken
from trivium.objectives.sentence_pairs import SentencePairs
from trivium.text.vocabulary import Vocabulary

pytestmark = pytest.mark.usefixtures("double_precision")

PAD, UNK, CLS, SEP, MASK, STOP = range(6)
SPECIALS, VOCAB = (PAD, UNK, CLS, SEP, MASK), 997
ROWS, LENGTH = 61, 503
CPU = torch.device("cpu")
LONGEST, FIRST = 1000, 1000


def vocabulary(size=VOCAB, **changes) -> Vocabulary:
    ids = {"pad_id": PAD, "unk_id": UNK, "cls_id": CLS, "sep_id": SEP, "mask_id": MASK}
    return Vocabulary(size=size, special_ids=SPECIALS, **ids, **changes)


def make_rows(rows=ROWS, length=LENGTH, seed=0, high=VOCAB):
    """[CLS] tokens [SEP] padding, with another special token here and there."""
    generator = np.random.default_rng(seed)
    ids = generator.integers(5, high, (rows, length))
    lengths = generator.integers(length // 2, length + 1, rows)
    ids[generator.random(ids.shape) < 0.02] = 1
    ids[:, 0] = CLS
    ids[np.arange(rows), lengths - 1] = SEP
    ids[np.arange(length) >= lengths[:, None]] = PAD
    return RowBatch(ids, lengths)


def assert_binomial(count, trials, share):
    """Within five deviations of what independent draws give."""
    deviation = math.sqrt(trials * share * (1 - share))
    assert abs(count - trials * share) <= 5 * deviation + 1e-9, (count, trials, share)


@pytest.mark.parametrize("shares", [(0.15, 0.8, 0.1), (0.3, 0.0, 1.0), (0.4, 1.0, 0.0)])
def test_shares_of_masked_replaced_and_kept_tokens(shares):
    probability, mask_share, random_share = shares
    objective = Masked(probability=probability, mask_share=mask_share, random_share=random_share)
    rows = make_rows()
    before = rows.input_ids.copy()
    batch = objective.prepare(rows, RowRandom(7, np.arange(ROWS)), vocabulary())
    assert (rows.input_ids == before).all()
    assert batch.labels is not None
    regular, chosen = ~np.isin(rows.input_ids, SPECIALS), batch.labels != IGNORE_INDEX
    assert not (chosen & ~regular).any()
    assert_binomial(chosen.sum(), regular.sum(), probability)
    assert (batch.labels[chosen] == rows.input_ids[chosen]).all()
    assert (batch.input_ids[~chosen] == rows.input_ids[~chosen]).all()
    masked = chosen & (batch.input_ids == MASK)
    same = chosen & (batch.input_ids == rows.input_ids)
    replaced = chosen & ~masked & ~same
    # One replacement in V - 5 is the token itself.
    kept_share = (1 - mask_share - random_share) + random_share / (VOCAB - 5)
    assert_binomial(masked.sum(), chosen.sum(), mask_share)
    assert_binomial(same.sum(), chosen.sum(), kept_share)
    assert_binomial(replaced.sum(), chosen.sum(), 1 - mask_share - kept_share)
    assert not np.isin(batch.input_ids[replaced], SPECIALS).any()
    assert (batch.attention_mask == (np.arange(LENGTH) < rows.lengths[:, None])).all()


@pytest.mark.parametrize(
    "objective",
    [Masked(), Masked(whole_words=True), Masked(max_span=3), ReplacedToken()],
    ids=["masked", "masked-words", "masked-spans", "replaced-token"],
)
def test_the_noise_of_a_row_is_its_own(objective):
    """Same (seed, position): same noise whatever else is in the batch; another seed: another."""
    rows, positions = make_rows(7, 53), np.array([5, 900, 2**40, 11, 12, 13, 0])
    facts = vocabulary(word_continuations=lambda: (np.arange(VOCAB) % 3 == 0).tolist())
    whole = objective.prepare(rows, RowRandom(1, positions), facts)
    for row in (6, 2):
        alone = rows.slice_rows(row, row + 1)
        single = objective.prepare(alone, RowRandom(1, positions[row : row + 1]), facts)
        assert (single.input_ids[0] == whole.input_ids[row]).all()
    other = objective.prepare(rows, RowRandom(2, positions), facts)
    assert (other.input_ids != whole.input_ids).any()


def test_pieces_of_a_word_are_chosen_together():
    generator = np.random.default_rng(0)
    ids = generator.integers(5, 500, (67, 97)) + 497 * (generator.random((67, 97)) < 0.4)
    continues = (np.arange(VOCAB + 5) >= 500).tolist()
    facts = vocabulary(VOCAB + 5, word_continuations=lambda: continues)
    rows = RowBatch(ids, np.full(67, 97))
    objective = Masked(probability=0.2, whole_words=True)
    batch = objective.prepare(rows, RowRandom(0, np.arange(67)), facts)
    assert batch.labels is not None
    chosen = batch.labels != IGNORE_INDEX
    inside = ids[:, 1:] >= 500
    assert (chosen[:, 1:][inside] == chosen[:, :-1][inside]).all()
    firsts = np.concatenate((np.ones((67, 1), bool), ~inside), axis=1)
    assert_binomial(chosen[firsts].sum(), firsts.sum(), 0.2)


@pytest.mark.parametrize("lengths", ["harmonic", "geometric"])
def test_spans_have_the_published_lengths_and_every_position_the_same_share(lengths):
    objective = Masked(probability=0.15, max_span=3, span_lengths=lengths)
    rows = RowBatch(np.full((4001, 31), 7), np.full(4001, 31))
    batch = objective.prepare(rows, RowRandom(3, np.arange(4001)), vocabulary())
    assert batch.labels is not None
    chosen = batch.labels != IGNORE_INDEX
    for column in (0, 1, 15, 30):
        assert_binomial(chosen[:, column].sum(), 4001, 0.15)
    weights = np.array([1, 1 / 2, 1 / 3] if lengths == "harmonic" else [1, 0.8, 0.64])
    chances = weights / weights.sum()
    mean = chances @ np.arange(1, 4)
    # Beside a chosen token another one is chosen more often than alone.
    both = (chosen[:, 1:] & chosen[:, :-1]).mean()
    start = 0.15 / (mean * 0.85 + 0.15)
    inside = 0.15 * (mean - 1) / mean
    assert both == pytest.approx(inside + 0.15 / mean * start, rel=0.1)


@pytest.mark.parametrize("name", BIDIRECTIONAL)
def test_the_masked_loss_is_the_cross_entropy_of_the_chosen_tokens(name):
    model, rows = small_model(name), make_rows(5, 23, high=VOCABULARY)
    facts, objective = vocabulary(VOCABULARY), Masked(probability=0.3)
    batch = objective.prepare(rows, RowRandom(0, np.arange(5)), facts)
    loss = objective.loss(model, to_device(batch, CPU))["loss"]
    assert batch.labels is not None
    ids, mask = torch.from_numpy(batch.input_ids), torch.from_numpy(batch.attention_mask)
    logits = model.logits(model(ids, attention_mask=mask)).flatten(0, 1)
    labels = torch.from_numpy(batch.labels).flatten()
    expected = F.cross_entropy(logits, labels, reduction="sum")
    assert int((labels >= 0).sum()) == objective.loss_denominators(batch)["loss"]
    assert loss.item() == pytest.approx(expected.item(), rel=1e-9)


class Text:
    """A split in memory: every token says which document and position it is of."""

    name = "train"
    prefix_ids, suffix_ids = (CLS,), (SEP,)

    def __init__(self, sizes, *, stop: int = 0) -> None:
        documents = [np.array([CLS, *tokens_of(n, s, stop), SEP]) for n, s in enumerate(sizes)]
        self.tokens = np.concatenate(documents)
        self.offsets = np.cumsum([0, *map(len, documents)])
        self.num_tokens, self.num_documents = len(self.tokens), len(documents)

    def rows_at(self, starts, lengths, *, pad_id=0):
        return rows_of(self.tokens, starts, lengths, pad_id)

    def documents_at(self, starts, length):
        positions = starts[:, None] + np.arange(length)
        return np.searchsorted(self.offsets, positions, side="right") - 1

    def document_bounds(self, documents):
        return self.offsets[documents], self.offsets[documents + 1]


def tokens_of(document, size, stop=0):
    return [
        STOP if stop and n % stop == stop - 1 else FIRST + LONGEST * document + n
        for n in range(size)
    ]


PAIR_VOCAB = vocabulary(
    90 * LONGEST, texts=lambda: ["." if n == STOP else "x" for n in range(90 * LONGEST)]
)
LONG = Rows(Text([211, 307, 97, 503, 401, 811]), 31)  # type: ignore[arg-type]
SINGLE = Rows(Text([n * 7 % 53 + 2 for n in range(83)]), 37, "truncate", pad_id=PAD)  # type: ignore


def prepared(objective, rows, epochs=1):
    taken = rows.take(np.tile(np.arange(len(rows)), epochs), with_documents=True)
    return taken, objective.prepare(taken, RowRandom(3, np.arange(taken.num_rows)), PAIR_VOCAB)


def segments(batch):
    """A and B of every pair, once its form is checked."""
    mask = batch.attention_mask
    real = np.ones_like(batch.input_ids) if mask is None else mask
    for ids, kinds, keep in zip(batch.input_ids, batch.token_type_ids, real, strict=True):
        count = int(keep.sum())
        row = ids[:count].tolist()
        assert (ids[count:] == PAD).all()
        assert (row[0], row[-1], row.count(SEP), row.count(CLS)) == (CLS, SEP, 2, 1)
        middle = row.index(SEP)
        assert kinds[:count].tolist() == [0] * (middle + 1) + [1] * (count - middle - 1)
        yield row[1:middle], row[middle + 1 : -1]


def test_half_of_the_pairs_follow_each_other():
    for pairs in ("nsp", "order"):
        objective = SentencePairs(pairs=pairs, probability=1e-9)
        for rows in (LONG, SINGLE):
            taken, batch = prepared(objective, rows, epochs=13)
            labels = batch.sequence_labels
            assert abs(labels.sum() - len(labels) / 2) < 5 * math.sqrt(len(labels)) / 2
            for number, (a, b) in enumerate(segments(batch)):
                assert a
                assert b
                assert len(a) + len(b) + 3 <= rows.length
                if pairs == "order":
                    before, after = (b, a) if labels[number] else (a, b)
                    assert np.diff(before + after).tolist() == [1] * (len(a) + len(b) - 1)
                    continue
                assert all(np.diff(part).tolist() == [1] * (len(part) - 1) for part in (a, b))
                follows = (a[-1] + 1 == b[0], a[0] // LONGEST == b[0] // LONGEST)
                assert follows == ((False, False) if labels[number] else (True, True))
                assert a[0] in taken.input_ids[number]


def test_pairs_are_cut_after_sentences_and_negatives_are_as_long():
    rows = Rows(Text([97, 89, 83, 79], stop=6), 41)  # type: ignore[arg-type]
    _, batch = prepared(SentencePairs(probability=1e-9), rows, epochs=53)
    pairs, labels = list(segments(batch)), batch.sequence_labels
    assert all(a[-1] == STOP for a, _ in pairs)
    _, batch = prepared(SentencePairs(probability=1e-9), LONG, epochs=29)
    whole = np.array([len(a) + len(b) == LONG.length - 3 for a, b in segments(batch)])
    shares = [whole[batch.sequence_labels == label].mean() for label in (0, 1)]
    assert abs(shares[0] - shares[1]) < 0.15
    assert len(labels) == len(pairs)


def test_texts_too_short_for_a_pair():
    for sizes in ((1, 1, 5), (0, 7, 9), (0, 0, 0)):
        rows = Rows(Text(sizes), 9, "truncate", pad_id=PAD)  # type: ignore[arg-type]
        for pairs in ("nsp", "order"):
            _, batch = prepared(SentencePairs(pairs=pairs, probability=0.5), rows, epochs=11)
            for number, (_, b) in enumerate(segments(batch)):
                if sizes[number % 3] < 2 and pairs == "order":
                    assert not b
                    assert not batch.sequence_labels[number]
    short = Rows(Text([50, 60]), 4)  # type: ignore[arg-type]
    assert all(a and b for a, b in segments(prepared(SentencePairs(pairs="order"), short)[1]))


def test_one_document_has_no_negatives():
    rows = Rows(Text([500]), 31)  # type: ignore[arg-type]
    _, batch = prepared(SentencePairs(), rows, epochs=3)
    assert not batch.sequence_labels.any()


@pytest.mark.parametrize("name", ["bert", "albert"])
def test_the_pair_loss_is_that_of_both_heads(name):
    model, generator = small_model(name), np.random.default_rng(0)
    lengths = np.array([23, 17, 5, 2, 1])
    documents = (np.arange(23) < lengths[:, None]).astype(np.int64)
    rows = RowBatch(generator.integers(5, 43, (5, 23)), lengths, documents, np.arange(5))
    objective = SentencePairs(pairs="order", probability=0.3)
    batch = objective.prepare(rows, RowRandom(0, np.arange(5)), vocabulary(43))
    losses = objective.loss(model, to_device(batch, CPU))
    inputs = {k: torch.from_numpy(v) for k, v in batch.arrays().items()}
    labels, pairs = inputs.pop("labels"), inputs.pop("sequence_labels")
    hidden = model(**inputs)
    expected = F.cross_entropy(
        model.logits(hidden).flatten(0, 1), labels.flatten(), reduction="sum"
    )
    logits = model.logits(hidden, head="nsp")
    order = F.cross_entropy(logits, pairs, reduction="sum")
    correct = sum(int(b > a) == label for (a, b), label in zip(logits.tolist(), pairs.tolist()))
    assert objective.loss_denominators(batch) == {
        "mlm": int((labels >= 0).sum()),
        "order": 5,
        "order_accuracy": 5,
    }
    assert losses["mlm"].item() == pytest.approx(expected.item(), rel=1e-9)
    assert losses["order"].item() == pytest.approx(order.item(), rel=1e-9)
    assert losses["order_accuracy"].item() == correct
    assert 0 < correct < 5


@pytest.mark.parametrize("kind", ["padded", "packed"])
def test_the_electra_losses_are_what_the_formula_says(kind):
    described = small_spec("electra").replace(heads=(spec.ReplacedTokenHead(),))
    model = build_with_generator(described, fraction=0.5)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.empty(weight.shape).normal_(0.0, 0.2, generator=generator))
    model.eval()
    objective = ReplacedToken(probability=0.3, generator_size=0.5)
    lengths = np.tile([23, 17, 5, 2, 1], 7) if kind == "padded" else np.full(35, 23)
    ids = np.random.default_rng(0).integers(5, VOCABULARY, (35, 23))
    ids[np.arange(23) >= lengths[:, None]] = 0
    documents = np.tile(np.arange(23) // 8 + 1, (35, 1)) if kind == "packed" else None
    rows = RowBatch(ids, lengths, documents)
    batch = objective.prepare(rows, RowRandom(0, np.arange(35)), vocabulary(VOCABULARY))
    losses = objective.loss(model, to_device(batch, CPU))  # type: ignore[arg-type]

    inputs = {k: torch.from_numpy(v) for k, v in batch.arrays().items()}
    labels, uniform = inputs.pop("labels"), inputs.pop("sequence_labels")
    original = torch.from_numpy(ids)
    with torch.no_grad():
        logits = model.generator.logits(model.generator(**inputs)).double()
        expected = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")
        sums = logits.softmax(-1).cumsum(-1)
        sampled = (sums <= uniform[..., None]).sum(-1)
        shown = torch.where(labels >= 0, sampled, original)
        assert (sampled == labels).any()  # a token that was masked and not replaced
        scores = model.discriminator.logits(
            model.discriminator(**(inputs | {"input_ids": shown})), head="replaced-token"
        )[..., 0].double()
        chance = torch.sigmoid(scores)
        replaced = (shown != original).double()
        each = -(replaced * chance.log() + (1 - replaced) * (1 - chance).log())
        real = torch.from_numpy(np.arange(23) < lengths[:, None])
    counts = {"generator": int((labels >= 0).sum()), "discriminator": int(real.sum())}
    assert objective.loss_denominators(batch) == counts
    assert losses["generator"].item() == pytest.approx(expected.item(), rel=1e-9)
    assert losses["discriminator"].item() == pytest.approx(each[real].sum().item(), rel=1e-9)
    assert objective.term_weights() == {"discriminator": 50.0}
    losses["discriminator"].backward()
    generator_only = [p for n, p in model.named_parameters() if n.startswith("generator.")]
    assert all(p.grad is None or not p.grad.any() for p in generator_only)
    saved = objective.models_to_save(model)
    assert set(saved) == {"", "generator"}
    assert saved["generator"].spec.d_model == objective.model_specs(described)[1].d_model


def test_whole_words_need_tokens_that_continue_a_word():
    chinese = vocabulary(word_continuations=lambda: [False] * VOCAB)
    with pytest.raises(RecipeError, match="whole_words = true masks the same as false"):
        Masked(whole_words=True).check_tokens(chinese)
    Masked().check_tokens(chinese)
    english = vocabulary(word_continuations=lambda: [number % 2 == 0 for number in range(VOCAB)])
    Masked(whole_words=True).check_tokens(english)


def test_pairs_have_an_accuracy_and_need_documents():
    objective = SentencePairs()
    with pytest.raises(RecipeError, match="read the rows with their documents"):
        objective.prepare(make_rows(), RowRandom(7, np.arange(ROWS)), vocabulary())
    assert objective.term_weights() == {"nsp_accuracy": 0.0}
