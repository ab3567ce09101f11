"""The n-gram model of counts equals nltk and the formulas; it decodes and is saved as others."""

from __future__ import annotations

import math

import pytest
import torch

from trivium import spec
from trivium.language_model import LanguageModel
from trivium.model_loading import load
from trivium.models import NGramCounts, build

nltk_lm = pytest.importorskip("nltk.lm")

VOCABULARY, ORDER = 11, 3
TEXTS = torch.tensor([[1, 2, 3, 1, 2, 4, 1, 2, 3], [5, 2, 3, 3, 3, 1, 2, 9, 9]])
pytestmark = pytest.mark.usefixtures("double_precision")


def counted(**keys):
    model = build(spec.NGramCountsSpec(vocab_size=VOCABULARY, order=ORDER, **keys))
    assert isinstance(model, NGramCounts)
    contexts = model(TEXTS[:, :-1]).flatten(0, 1)
    model.lm_loss(contexts, TEXTS[:, 1:].flatten()).backward()  # as the trainer calls it
    return model.eval()


def ngrams(size):
    """All n-grams that are counted, of texts after so many -1."""
    rows = [[-1] * (ORDER - 2) + row for row in TEXTS.tolist()]
    top = [tuple(row[i : i + ORDER]) for row in rows for i in range(len(row) - ORDER + 1)]
    return [gram[ORDER - size :] for gram in top]


def theirs(model):
    """A model of nltk with the same n-grams of every order; its words are strings."""
    words = [[tuple(map(str, gram)) for gram in ngrams(size)] for size in range(1, ORDER + 1)]
    model.fit(words, [str(token) for token in range(VOCABULARY)])
    return model


def contexts_of(model):
    """Every context after two tokens: those counted, and others."""
    pairs = torch.cartesian_prod(*2 * [torch.arange(VOCABULARY)])
    return pairs, model.logits(model(pairs))[:, -1].exp()


def test_add_k_equals_nltk():
    model = counted(smoothing="add-k", k=0.3)
    lidstone = theirs(nltk_lm.Lidstone(0.3, ORDER))
    pairs, rows = contexts_of(model)
    for context, row in zip(pairs.tolist(), rows.tolist(), strict=True):
        counts = lidstone.counts[[*map(str, context)]]
        total = counts.N() + 0.3 * VOCABULARY  # their vocabulary has <UNK>, too
        for token, p in enumerate(row):
            scaled = lidstone.unmasked_score(str(token), tuple(map(str, context)))
            scaled *= (total + 0.3) / total
            assert p == pytest.approx(scaled, rel=1e-12)


def kneser_ney(gram, discount):
    """The formula of `NGramCountsSpec`, from sets and sums."""
    if not gram:
        return 1 / VOCABULARY

    def count(one):
        if len(gram) == ORDER:
            return ngrams(ORDER).count(one)
        return len({longer for longer in ngrams(len(gram) + 1) if longer[1:] == one})

    after = [(*gram[:-1], token) for token in range(VOCABULARY)]
    total = sum(map(count, after))
    below = kneser_ney(gram[1:], discount)
    if not total:
        return below
    different = sum(count(one) > 0 for one in after)
    return (max(count(gram) - discount, 0) + discount * different * below) / total


def test_kneser_ney_equals_the_formula_and_nltk_above_unigrams():
    model = counted(discount=0.4)
    pairs, rows = contexts_of(model)
    torch.testing.assert_close(rows.sum(1), torch.ones(len(rows)))
    nltk = theirs(nltk_lm.KneserNeyInterpolated(ORDER, 0.4))
    low = sum(kneser_ney((token,), 0.4) for token in range(VOCABULARY))
    assert low == pytest.approx(1)
    # nltk's unigrams are not interpolated: with ours in their place all is equal.
    nltk.estimator.unigram_score = lambda word: kneser_ney((int(word),), 0.4)
    for context, row in [*zip(pairs.tolist(), rows.tolist(), strict=True)][::3]:
        for token, p in enumerate(row):
            assert p == pytest.approx(kneser_ney((*context, token), 0.4), rel=1e-12)
            assert p == pytest.approx(
                nltk.unmasked_score(str(token), tuple(map(str, context))), rel=1e-12
            )
    # D = n1 / (n1 + 2 n2) of every order, which Ney et al. estimate.
    grams = ngrams(ORDER)
    once, twice = (sum(grams.count(one) == n for one in {*grams}) for n in (1, 2))
    assert [*counted()._order_terms((2, 1))][-1][1] == once / (once + 2 * twice)


def test_a_text_is_predicted_before_it_is_counted_and_counted_once():
    model = build(spec.NGramCountsSpec(vocab_size=VOCABULARY, order=ORDER))
    contexts, targets = model(TEXTS[:, :-1]).flatten(0, 1), TEXTS[:, 1:].flatten()
    first = model.lm_loss(contexts, targets).item()
    assert first == pytest.approx(len(targets) * math.log(VOCABULARY))
    after = model.eval().lm_loss(contexts, targets).item()
    assert after < first
    assert model.lm_loss(contexts, targets).item() == after


def test_steps_padding_and_documents_give_the_same_contexts():
    model, ids = counted(), TEXTS
    whole = model.logits(model(ids))
    cache = model.new_cache(2, 12)
    steps = [model.logits(model(part, cache=cache)) for part in ids.split((4, 1, 1, 3), 1)]
    torch.testing.assert_close(torch.cat(steps, 1), whole)
    documents = torch.tensor([[1] * 4 + [2] * 5])
    packed = model(ids[:1], document_ids=documents)
    separate = [model(ids[:1, :4]), model(ids[:1, 4:])]
    torch.testing.assert_close(packed, torch.cat(separate, 1))
    real = torch.tensor([[0, 0, 1, 1, 1, 1, 1, 1, 1]])
    padded = model(ids[:1], attention_mask=real)
    torch.testing.assert_close(padded[:, 2:], model(ids[:1, 2:]))


def test_counts_are_saved(tmp_path):
    model = counted()
    LanguageModel(model.spec, model).save(tmp_path / "model")
    loaded = load(tmp_path / "model").module
    assert isinstance(loaded, NGramCounts)
    assert torch.equal(contexts_of(loaded)[1], contexts_of(model)[1])
    assert torch.equal(loaded.get_extra_state(), model.get_extra_state())
