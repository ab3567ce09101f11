"""Causal, prefix and bidirectional language models: labels, windows, and losses by formula."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from small_models import CAUSAL, VOCABULARY, random_ids, small_model
from torch.nn import functional as F

from trivium import spec
from trivium.data.batch import IGNORE_INDEX, RowBatch
from trivium.data.row_order import RowRandom
from trivium.errors import RecipeError
from trivium.models import build
from trivium.objectives import Objective, default_objective, to_device
from trivium.objectives.bidirectional import BidirectionalLM
from trivium.objectives.causal import Causal
from trivium.objectives.prefix_lm import PrefixLM, Seq2SeqPrefixLM
from trivium.presets import presets
from trivium.text.vocabulary import Vocabulary

pytestmark = pytest.mark.usefixtures("double_precision")

NONE, CPU = RowRandom(0, [0]), torch.device("cpu")
PAD, END, TEXT = 0, 1, 7
VOCAB = Vocabulary(size=10_000, pad_id=PAD, eos_id=END, special_ids=(PAD, END))
HEADS = (spec.LMHead(tied=True, bias=True),)
TWO_WAY = spec.RNNSpec(
    vocab_size=43, d_model=22, cell="lstm", d_hidden=17, num_layers=2, heads=HEADS,
    direction="bilm",
)  # fmt: skip


def rows_of(ids, lengths=None, documents=None):
    ids = np.array(ids)
    lengths = np.full(len(ids), ids.shape[1]) if lengths is None else np.array(lengths)
    return RowBatch(ids, lengths, None if documents is None else np.array(documents))


def make_rows(rows, length, lengths=None):
    ids = np.arange(rows * length).reshape(rows, length) + TEXT
    lengths = np.full(rows, length) if lengths is None else np.array(lengths)
    ids[np.arange(length) >= lengths[:, None]] = PAD
    return RowBatch(ids, lengths)


def test_labels_are_the_next_tokens_of_the_same_document():
    rows = rows_of([[11, 12, 13, 14], [21, 22, 0, 0], [31, 0, 0, 0]], [4, 2, 1])
    batch = Causal().prepare(rows, NONE, VOCAB)
    assert batch.labels is not None
    assert batch.labels.tolist() == [
        [12, 13, 14, -100],
        [22, -100, -100, -100],
        [-100, -100, -100, -100],
    ]
    assert list(batch.arrays()) == ["input_ids", "labels"]
    apart = rows_of([[11, 12, 21, 22, 23, 31, 0]], [6], [[1, 1, 2, 2, 2, 3, 0]])
    batch = Causal().prepare(apart, NONE, VOCAB)
    assert batch.labels is not None
    assert batch.position_ids is not None
    assert batch.labels.tolist() == [[12, -100, 22, 23, -100, -100, -100]]
    assert batch.position_ids.tolist() == [[0, 1, 0, 1, 2, 0, 0]]
    tensors = to_device(batch, CPU)
    assert set(tensors.inputs) == {"input_ids", "position_ids", "document_ids"}
    assert tensors.label_positions.tolist() == [0, 2, 3]
    assert tensors.targets.tolist() == [12, 22, 23]


def test_a_limited_context_makes_windows_of_documents():
    documents = [[1, 1, 1, 1, 2, 2, 2, 2, 2], [1, 1, 0, 0, 0, 0, 0, 0, 0]]
    ids = [[11, 12, 13, 14, 21, 22, 23, 24, 25], [31, 32, 0, 0, 0, 0, 0, 0, 0]]
    batch = Causal(context=3).prepare(rows_of(ids, [9, 2], documents), NONE, VOCAB)
    assert batch.document_ids is not None
    assert batch.labels is not None
    assert batch.document_ids.tolist() == [[1, 1, 1, 2, 3, 3, 3, 4, 4], [1, 1, 0, 0, 0, 0, 0, 0, 0]]
    assert batch.labels[0].tolist() == [12, 13, 14, -100, 22, 23, 24, 25, -100]


@pytest.mark.parametrize("name", ["gpt2", "llama", "lstm", "ngram"])
@pytest.mark.parametrize("context", [1, 5])
def test_a_hidden_state_depends_on_its_window_alone(name, context):
    common = {"vocab_size": VOCABULARY, "heads": (spec.LMHead(tied=False),)}
    if name == "ngram":
        model = build(spec.NGramSpec(d_model=7, order=4, d_hidden=13, **common)).eval()
    elif name == "lstm":
        rnn = spec.RNNSpec(d_model=11, cell="lstm", d_hidden=17, num_layers=2, **common)
        model = build(rnn).eval()
    else:
        model = small_model(name)
    batch = Causal(context=context).prepare(rows_of(random_ids(1, 17).numpy()), NONE, VOCAB)
    inputs = to_device(batch, CPU).inputs
    ids = inputs.pop("input_ids")
    seen = torch.zeros(17, 17, dtype=torch.bool)
    with torch.no_grad():
        before = model(ids, **inputs)
        for position in range(17):
            changed = ids.clone()
            changed[0, position] = ids[0, position] % (VOCABULARY - 1) + 1
            difference = (model(changed, **inputs) - before).abs().amax(-1)[0]
            seen[:, position] = difference > 1e-12
    window = torch.arange(17) // context
    allowed = (window[:, None] == window).tril()
    assert not (seen & ~allowed).any()
    assert seen.diagonal().all()


@pytest.mark.parametrize("name", CAUSAL)
def test_the_causal_loss_is_the_cross_entropy_of_the_next_tokens(name):
    ids = random_ids(3, 17)
    model = small_model(name)
    batch = Causal().prepare(rows_of(ids.numpy(), [17, 11, 2]), NONE, VOCAB)
    loss = Causal().loss(model, to_device(batch, CPU))["loss"]
    logits = model.logits(model(ids))
    expected: torch.Tensor = sum(  # type: ignore[assignment]
        F.cross_entropy(logits[row, : length - 1], ids[row, 1:length], reduction="sum")
        for row, length in enumerate((17, 11, 2))
    )
    assert Causal().loss_denominators(batch)["loss"] == 16 + 10 + 1
    assert loss.item() == pytest.approx(expected.item(), rel=1e-9)


def test_prefixes_are_even_and_only_the_rest_has_labels():
    count, length = 6007, 7
    rows = make_rows(count, length)
    batch = PrefixLM().prepare(rows, RowRandom(0, np.arange(count)), VOCAB)
    whole = Causal().prepare(rows, NONE, VOCAB).labels
    assert batch.labels is not None
    assert whole is not None
    prefix = (batch.labels != IGNORE_INDEX).argmax(1) + 1
    sizes = np.bincount(prefix, minlength=length)
    assert sizes[0] == 0
    assert len(sizes) == length
    for size in range(1, length):
        assert abs(sizes[size] - count / 6) < 5 * math.sqrt(count * 5 / 36)
    labelled = np.arange(length) >= prefix[:, None] - 1
    assert (batch.labels == np.where(labelled, whole, IGNORE_INDEX)).all()


def test_a_seq2seq_prefix_loses_nothing_and_depends_on_its_row_alone():
    lengths = np.arange(211) % 31 + 1
    rows, positions = make_rows(211, 31, lengths), np.arange(211) + 2**40
    objective = Seq2SeqPrefixLM()
    batch = objective.prepare(rows, RowRandom(0, positions), VOCAB)
    assert batch.attention_mask is not None
    assert batch.labels is not None
    assert batch.decoder_input_ids is not None
    for row, length in enumerate(lengths):
        source = batch.input_ids[row][batch.attention_mask[row] > 0].tolist()
        target = batch.labels[row][batch.labels[row] != IGNORE_INDEX].tolist()
        assert source.pop() == END
        if length == 1:
            assert (source, target) == ([rows.input_ids[row, 0]], [])
            continue
        assert target[-1] == END
        assert source
        assert source + target[:-1] == rows.input_ids[row, :length].tolist()
        assert batch.decoder_input_ids[row, : len(target)].tolist() == [PAD, *target[:-1]]
    alone = objective.prepare(rows.slice_rows(3, 4), RowRandom(0, positions[3:4]), VOCAB)
    assert alone.labels is not None
    assert (alone.labels[0] == batch.labels[3, : alone.labels.shape[1]]).all()


def test_the_bidirectional_loss_is_that_of_both_directions():
    objective, model = BidirectionalLM(), build(TWO_WAY, seed=3).eval()
    batch = objective.prepare(rows_of([[11, 12, 13, 14], [21, 22, 0, 0]], [4, 2]), NONE, VOCAB)
    assert batch.labels is not None
    assert batch.labels[0].tolist() == [[12, 13, 14, -100], [-100, 11, 12, 13]]
    assert batch.labels[1].tolist() == [[22, -100, -100, -100], [-100, 21, -100, -100]]
    ids = np.random.default_rng(0).integers(1, 43, (5, 11))
    batch = objective.prepare(rows_of(ids), NONE, VOCAB)
    loss = objective.loss(model, to_device(batch, CPU))
    assert objective.loss_denominators(batch) == {"loss": 2 * 5 * 10}
    tensor = torch.from_numpy(ids)
    forward, backward = model.logits(model.two_ways(tensor)).unbind(1)  # type: ignore
    expected = F.cross_entropy(forward[:, :-1].transpose(1, 2), tensor[:, 1:], reduction="sum")
    expected += F.cross_entropy(backward[:, 1:].transpose(1, 2), tensor[:, :-1], reduction="sum")
    torch.testing.assert_close(loss["loss"], expected)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("gpt2", "causal"),
        ("bert-base", "masked"),
        ("t5-small", "span-corruption"),
        ("bart-base", "denoising"),
        ("electra-small", "replaced-token"),
        ("elmo-mini", "bidirectional-lm"),
    ],
)
def test_models_are_paired_with_their_published_objective(name, kind):
    objective = default_objective(presets[name])
    assert objective.kind == kind
    assert objective.heads(presets[name])
    assert objective.suggest_command("runs/x", None).split()[1].startswith("runs/x")  # type: ignore


@pytest.mark.parametrize("name", presets)
def test_at_most_one_objective_is_the_default_of_a_model(name):
    kinds = Objective.kinds.items()
    assert len([kind for kind, cls in kinds if cls.is_default_for(presets[name])]) < 2


def test_a_model_without_a_default_objective_needs_a_choice():
    with pytest.raises(RecipeError, match="choose one"):
        default_objective(presets["transformer-base"])


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("causal", "bert-base"),
        ("prefix-lm", "t5-small"),
        ("masked", "gpt2"),
        ("span-corruption", "gpt2"),
        ("denoising", "bert-base"),
        ("seq2seq-prefix-lm", "gpt2"),
        ("replaced-token", "gpt2"),
        ("sentence-pairs", "gpt2"),
        ("bidirectional-lm", "gpt2"),
    ],
)
def test_models_that_an_objective_does_not_fit_are_refused(kind, name):
    with pytest.raises(RecipeError):
        Objective.kinds[kind]().heads(presets[name])


@pytest.mark.parametrize(
    "kind",
    [
        "masked",
        "sentence-pairs",
        "replaced-token",
        "span-corruption",
        "denoising",
        "seq2seq-prefix-lm",
    ],
)
def test_missing_special_tokens_are_refused(kind):
    bare = Vocabulary(size=99, kind="byte-bpe")
    with pytest.raises(RecipeError, match="needs"):
        Objective.kinds[kind]().check_tokens(bare)
