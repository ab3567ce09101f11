"""Numbers of the topics of objectives and decoding, and the batch that a run shows."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.special
import scipy.stats
from run_settings import quiet, settings

from trivium.errors import RecipeError, TriviumError
from trivium.explain import explain
from trivium.explain.show_batch import ShowBatch
from trivium.train.rollout import RolloutLoader
from trivium.train.run_folder import RunFolder
from trivium.workflows.training import pretrain


def test_masks_come_in_the_shares_of_the_paper():
    text = " ".join(f"w{i}" for i in range(60))
    shares = explain("masked", [text], draws=4000).data["shares"]
    own = 0.1 / 60  # a random token is the token itself
    expected = {"chosen": 0.15, "masked": 0.8, "replaced": 0.1 - own, "kept": 0.1 + own}
    for name, share in expected.items():
        count = 4000 * 60 * (1 if name == "chosen" else 0.15)
        assert abs(shares[name] - share) < 4 * math.sqrt(share * (1 - share) / count)


def test_replaced_tokens_are_drawn_by_frequency_and_a_right_draw_is_original():
    words = ["the", "chef", "cooked", "the", "meal"]
    right = masked = 0
    for seed in range(0, 800, 20):
        data = explain("replaced-token", [" ".join(words)] * 8, seed=seed, probability=0.5).data
        nats = []
        for row, shown in zip(data["rows"], data["discriminator"]):
            text = ["[CLS]", *words, "[SEP]"]
            assert shown["replaced"] == [a != b for a, b in zip(shown["tokens"], text)]
            targets = [one for one in row["labels"] if one]
            nats += [-math.log(words.count(one) / 5) for one in targets]
            right += len(targets) - sum(shown["replaced"])
        masked += len(nats)
        assert math.isclose(data["losses"][0], sum(nats) / len(nats), rel_tol=1e-5)
    share = 0.4 * 0.4 + 3 * 0.2 * 0.2
    assert abs(right / masked - share) < 4 * math.sqrt(share * (1 - share) / masked)


def test_spans_put_back_give_the_text():
    text = "The man in the long coat walked slowly to the store of his old friend"
    rows = explain("span-corruption", [text]).data["rows"]
    for encoder, decoder in zip(rows[::2], rows[1::2]):
        spans, span = {}, []
        for token in decoder["labels"][:-1]:
            if token.startswith("<extra_id"):
                span = spans.setdefault(token, [])
            elif token is not None:
                span.append(token)
        whole = [word for token in encoder["tokens"] for word in spans.get(token, [token])]
        assert " ".join(whole[:-1]) == text


def test_a_beam_finds_what_is_most_probable_and_greedy_does_not():
    from trivium.explain.topics.beam import _TABLE

    def texts(word):
        for following, p in _TABLE[word].items():
            if following == "</s>":
                yield [], p
            else:
                yield from (([following, *rest], p * q) for rest, q in texts(following))

    best, probability = max(texts("I"), key=lambda one: one[1])
    greedy, *found = explain("beam", "I", beams=2, length_penalty=0.0).data["found"]
    assert found[0]["text"] == " ".join(best)
    assert math.isclose(found[0]["probability"], probability, rel_tol=1e-5)
    assert greedy["text"] == "am here"
    with pytest.raises(TriviumError, match='every word of "we"'):
        explain("beam", "we")


def test_what_top_p_leaves_is_as_the_paper_says():
    logits = [2.0, 1.0, 0.0, -1.0]
    data = explain("sampling", logits, temperature=2.0, top_k=3, top_p=0.8).data
    p = np.exp(np.array(logits) / 2)
    p[3] = 0.0
    p /= p.sum()
    p[2] = 0.0 if p[:2].sum() >= 0.8 else p[2]
    expected = p / p.sum()
    assert np.allclose(data["probabilities"]["top-p 0.8"], expected)
    assert np.abs(np.array(data["draws"]) / 1000 - expected).max() < 0.06


def test_the_spread_of_a_distribution_by_temperature():
    logits = [2.0, 1.0, 0.0, -1.0]
    rows = [line.split() for line in explain("sampling", logits).text("en").splitlines()]
    for temperature in (0.2, 0.8, 1.0, 3.0):
        p = scipy.special.softmax(np.array(logits) / temperature)
        needed = next(n for n in range(1, 5) if p[:n].sum() >= 0.9)
        row = f"{temperature:g} {p[0]:.4f} {scipy.stats.entropy(p):.2f} {needed}"
        assert row.split() in rows


def test_a_tokenizer_without_a_mask_is_refused(tmp_path):
    from trivium.text import Tokenizer

    path = Tokenizer.train("byte-bpe", texts=["some text"], progress=False).save(tmp_path)
    with pytest.raises(RecipeError, match="needs the special token"):
        explain("masked", ["some text"], tokenizer=str(path))


def shown_tokens(run):
    """The rows of the first batch that a run keeps."""
    return [row["tokens"] for row in RunFolder(run).read_metadata()["first_batch"]]


def test_the_batch_shown_is_the_one_that_is_trained_on(tmp_path, monkeypatch, capsys):
    trained, shown = [], []
    steps_from, on_start = RolloutLoader.steps_from, ShowBatch.on_start

    def noting(loader, number):
        for batch in steps_from(loader, number):
            trained.append(batch)
            yield batch

    def start(callback, batch, lm):
        shown.append(batch)
        on_start(callback, batch, lm)

    monkeypatch.setattr(RolloutLoader, "steps_from", noting)
    monkeypatch.setattr(ShowBatch, "on_start", start)
    text = tmp_path / "text.txt"
    text.write_text("\n\n".join(f"the cat {i} sat on mat {i * i} and slept" for i in range(300)))
    out, changes = tmp_path / "run", settings(steps=1)
    pretrain(
        "bert-tiny",
        data=text,
        out=out,
        changes=changes,
        callbacks=[ShowBatch(out)],
        console=quiet(),
    )
    [one] = shown
    for ours, theirs in zip(one.micro_batches, trained[0].micro_batches, strict=True):
        for name, array in theirs.arrays().items():
            assert np.array_equal(ours.arrays()[name], array)
    assert one.loss_denominators == trained[0].loss_denominators
    page = (out / "report.html").read_text()
    assert "Inputs and labels of the first batch" in page
    assert page.count('<span class="token') == sum(map(len, shown_tokens(out)))
    printed = capsys.readouterr().err
    assert "first batch of masked" in printed
    assert f"{one.loss_denominators['loss']}" in printed.splitlines()[-1]
