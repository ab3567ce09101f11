"""What is asked of labelled examples, against PyTorch's losses written out."""

from __future__ import annotations

import pytest
import torch
from small_models import MAX_LENGTH, VOCABULARY, WIDTH, random_ids, small_model, small_spec
from torch.nn import functional as F
from training import plan, step_batch

from trivium.data import NO_LOSS, Batch, Examples
from trivium.models import build
from trivium.objectives import to_device
from trivium.objectives.answer_spans import AnswerSpans
from trivium.objectives.classification import Classification
from trivium.objectives.tagging import Tagging
from trivium.objectives.told_tokens import ToldTokens
from trivium.spec import ClassifierHead, LMHead, SpanHead, TaggerHead
from trivium.train.loop import forward_backward

CPU = torch.device("cpu")
SIZES = [11, 3, 7, 2, 11, 5, 13]
ROWS = [random_ids(1, size, seed=i)[0].tolist() for i, size in enumerate(SIZES)]
NEXT = [[*row[1:], NO_LOSS] for row in ROWS]
CLASSES = [3, 0, 4, 4, 1, 2, 0]
SEVERAL = torch.randint(2, (7, 5), generator=torch.Generator().manual_seed(1)).tolist()
NUMBERS = [0.5, -1.25, 3.0, 0.0, 2.5, -0.75, 1.0]


def with_heads(name: str, *heads, seed: int = 1):
    """A small model with other heads and larger weights than it would start with."""
    model = build(small_spec(name).replace(heads=heads), seed=seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            weight += torch.empty(weight.shape).normal_(0.0, 0.2, generator=generator)
    return model.eval()


def decoder():
    heads = LMHead(tied=True), ClassifierHead(num_labels=5, pooling="last", bias=False)
    return with_heads("gpt2", *heads)


def encoder(head):
    return with_heads("bert", head)


def batch_of(text_labels=None, **sequences) -> Batch:
    return Examples({"input_ids": ROWS, **sequences}, text_labels=text_labels).take(range(7))


def alone(model, head: str) -> list[torch.Tensor]:
    """What a head says of every row by itself."""
    rows = (torch.tensor([row]) for row in ROWS)
    with torch.no_grad():
        return [model.logits(model(row), head=head)[0].double() for row in rows]


def class_losses(kind: str, logits: torch.Tensor, weights=None) -> torch.Tensor:
    """The definition, for every text: [N]."""
    scale = torch.ones(5) if weights is None else torch.tensor(weights)
    match kind:
        case "classes":
            labels = torch.tensor(CLASSES)
            return -logits.log_softmax(-1)[torch.arange(7), labels] * scale[labels]
        case "multi-label":
            gold = torch.tensor(SEVERAL).double()
            share = logits.sigmoid()
            each = -(gold * share.log() + (1 - gold) * (1 - share).log())
            return (each * scale).mean(-1)
    return (logits[:, 0] - torch.tensor(NUMBERS)) ** 2


LABELS = {"classes": CLASSES, "multi-label": SEVERAL, "numbers": NUMBERS}


@pytest.mark.parametrize("weights", [None, (0.5, 1.0, 2.0, 0.25, 3.0)])
@pytest.mark.parametrize("kind", LABELS)
@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_classes_several_labels_and_numbers(family, kind, weights):
    pooling = "first" if family == "bert" else "last"
    model = with_heads(family, ClassifierHead(num_labels=5, pooling=pooling))
    weights = None if kind == "numbers" else weights
    objective, batch = Classification(kind=kind, class_weights=weights), batch_of(LABELS[kind])
    loss = objective.loss(model, to_device(batch, CPU))
    wanted = class_losses(kind, torch.stack(alone(model, "classifier")), weights).sum()
    assert loss.sum.item() == pytest.approx(wanted.item(), rel=1e-5)
    assert (loss.count, loss.name, loss.others) == (7, "task", ())
    assert objective.counts(batch) == (7,)


def lm_loss(model) -> float:
    total = 0.0
    for row, logits in zip(ROWS, alone(model, "lm"), strict=True):
        total += F.cross_entropy(logits[:-1], torch.tensor(row[1:]), reduction="sum").item()
    return total


def test_the_mixed_loss_is_task_plus_lambda_times_language_model():
    model, objective = decoder(), Classification(lm_weight=0.3)
    batch = batch_of(CLASSES, labels=NEXT)
    tokens = sum(SIZES) - 7
    assert objective.counts(batch) == (7, tokens)
    loss = objective.loss(model, to_device(batch, CPU))
    (lm,) = loss.others
    assert (lm.name, lm.weight, lm.count) == ("lm", 0.3, tokens)
    assert lm.sum.item() == pytest.approx(lm_loss(model), rel=1e-5)
    found = forward_backward(model, step_batch(objective, batch, 7), plan(), 0)
    assert (found.names, found.weights, found.counts) == (("task", "lm"), (1.0, 0.3), (7, tokens))
    gradients = [weight.grad.clone() for weight in model.parameters()]
    model.zero_grad()
    task = class_losses("classes", torch.stack(with_grad(model, "classifier")))
    told = torch.cat([rows[:-1] for rows in with_grad(model, "lm")])
    targets = torch.tensor([index for row in ROWS for index in row[1:]])
    (task.mean() + 0.3 * F.cross_entropy(told, targets)).backward()
    for mine, weight in zip(gradients, model.parameters(), strict=True):
        torch.testing.assert_close(mine, weight.grad, atol=2e-5, rtol=1e-3)


def with_grad(model, head: str) -> list[torch.Tensor]:
    rows = (torch.tensor([row]) for row in ROWS)
    return [model.logits(model(row), head=head)[0].double() for row in rows]


def test_with_lambda_0_the_language_model_is_measured_but_not_trained():
    model, objective = decoder(), Classification(lm_weight=0.0)
    batch = batch_of(CLASSES, labels=NEXT)
    assert objective.counts(batch) == (7,)
    (lm,) = objective.loss(model, to_device(batch, CPU)).others
    assert lm.weight == 0.0
    assert lm.sum.item() == pytest.approx(lm_loss(model), rel=1e-5)
    model.train()
    assert objective.loss(model, to_device(batch, CPU)).others == ()
    found = forward_backward(model, step_batch(objective, batch, 7), plan(), 0)
    assert found.names == ("task",)
    # The batch with no next token has the same terms as others.
    single = Examples({"input_ids": [[5]], "labels": [[NO_LOSS]]}, text_labels=[1]).take([0])
    (lm,) = objective.loss(model.eval(), to_device(single, CPU)).others
    assert (lm.count, lm.sum.item()) == (0, 0.0)


def tags_of(rows) -> list[list[int]]:
    return [
        [NO_LOSS if n % 3 == 1 else (n + len(row)) % 5 for n in range(len(row))] for row in rows
    ]


def test_tags_are_asked_where_there_are_labels():
    model, tags = encoder(TaggerHead(num_labels=5)), tags_of(ROWS)
    batch = batch_of(labels=tags)
    for weights in (None, (0.5, 1.0, 2.0, 0.25, 3.0)):
        objective = Tagging(class_weights=weights)
        loss = objective.loss(model, to_device(batch, CPU))
        total = 0.0
        for logits, asked in zip(alone(model, "tagger"), tags, strict=True):
            for scores, tag in zip(logits, asked, strict=True):
                if tag != NO_LOSS:
                    scale = 1.0 if weights is None else weights[tag]
                    total -= scale * scores.log_softmax(-1)[tag].item()
        assert loss.sum.item() == pytest.approx(total, rel=1e-5)
        labelled = sum(tag != NO_LOSS for row in tags for tag in row)
        assert objective.counts(batch) == (loss.count,) == (labelled,)


ENDS = [(3, 5), (0, 0), (6, 6), (1, 1), (2, 10), (0, 0), (12, 12)]


def test_ends_of_answers():
    model = encoder(SpanHead())
    batch, objective = batch_of(ENDS), AnswerSpans()
    loss = objective.loss(model, to_device(batch, CPU))
    wanted = 0.0
    for logits, (start, end) in zip(alone(model, "span"), ENDS, strict=True):
        shares = logits.log_softmax(0)
        wanted -= 0.5 * (shares[start, 0] + shares[end, 1]).item()
    assert loss.sum.item() == pytest.approx(wanted, rel=1e-5)
    assert objective.counts(batch) == (loss.count,) == (7,)


def test_answers_cost_what_they_cost_in_transformers():
    transformers = pytest.importorskip("transformers")
    from hugging_face import ours_of, randomize

    config = transformers.BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=29,
        max_position_embeddings=MAX_LENGTH,
    )
    hf = randomize(transformers.BertForQuestionAnswering(config), seed=3)
    even = Examples({"input_ids": [ROWS[0], ROWS[4]]}, text_labels=[ENDS[0], ENDS[4]]).take([0, 1])
    ids, ends = torch.from_numpy(even.input_ids), torch.tensor([ENDS[0], ENDS[4]])
    wanted = hf(ids, start_positions=ends[:, 0], end_positions=ends[:, 1]).loss
    loss = AnswerSpans().loss(ours_of(hf), to_device(even, CPU))
    assert (loss.sum / loss.count).item() == pytest.approx(wanted.item(), rel=1e-4)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("name", ["gpt2", "t5", "bart"])
def test_told_tokens(name, smoothing):
    model = small_model(name)
    objective = ToldTokens(smoothing=smoothing)
    sequences = {"input_ids": ROWS, "labels": NEXT}
    if model.spec.family == "encoder-decoder":
        written = [[1, *row[:-1]] for row in reversed(ROWS)]
        told = [[*row[1:], 2] for row in written]
        sequences = {"input_ids": ROWS, "decoder_input_ids": written, "labels": told}
    batch = Examples(sequences).take(range(7))
    loss = objective.loss(model, to_device(batch, CPU))
    total, count = 0.0, 0
    for number in range(7):
        ids = {key: torch.tensor([rows[number]]) for key, rows in sequences.items()}
        labels = ids.pop("labels")[0]
        with torch.no_grad():
            logits = model.logits(model(**ids))[0].double()
        kept = labels != NO_LOSS
        total += F.cross_entropy(
            logits[kept], labels[kept], reduction="sum", label_smoothing=smoothing
        ).item()
        count += int(kept.sum())
    assert loss.sum.item() == pytest.approx(total, rel=1e-5)
    assert objective.counts(batch) == (loss.count,) == (count,)


CASES = {
    "classes": lambda: (
        encoder(ClassifierHead(num_labels=5, pooling="mean")),
        Classification(class_weights=(0.5, 1.0, 2.0, 0.25, 3.0)),
        batch_of(CLASSES),
    ),
    "mixed": lambda: (decoder(), Classification(lm_weight=0.5), batch_of(CLASSES, labels=NEXT)),
    "tags": lambda: (
        encoder(TaggerHead(num_labels=5)),
        Tagging(),
        batch_of(labels=tags_of(ROWS)),
    ),
    "answers": lambda: (encoder(SpanHead()), AnswerSpans(), batch_of(ENDS)),
    "told": lambda: (decoder(), ToldTokens(smoothing=0.1), batch_of(labels=NEXT)),
}


@pytest.mark.parametrize("name", CASES)
def test_splits_into_micro_batches_change_nothing(name):
    found = []
    for rows in (7, 3, 1):
        model, objective, batch = CASES[name]()
        step = forward_backward(model, step_batch(objective, batch, rows), plan(), 0)
        found.append((step, [weight.grad for weight in model.parameters()]))
    whole, gradients = found[0]
    for step, others in found[1:]:
        assert step.counts == whole.counts
        torch.testing.assert_close(step.sums, whole.sums, atol=1e-4, rtol=1e-5)
        scale = max(g.abs().max() for g in gradients if g is not None)
        for mine, other in zip(others, gradients, strict=True):
            if other is None:
                assert mine is None
            else:
                assert (mine - other).abs().max() < 1e-5 * scale + 1e-6
