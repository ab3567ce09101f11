"""TSDAE: what is deleted, the decoder sees one vector, the encoder is saved and embeds."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from double import double_precision
from overfit_tasks import CPU, overfit, untrained
from torch.nn import functional as F

from trivium import load
from trivium.data.row_order import RowRandom
from trivium.errors import RecipeError
from trivium.interop.tensor_files import write_safetensors
from trivium.language_model import LanguageModel
from trivium.model_folder import read_model
from trivium.objectives import to_device
from trivium.objectives.text_pairs import TextPair
from trivium.objectives.tsdae import TSDAE
from trivium.presets import presets

TEXTS = ["Ada wrote the first program .", "Grace left the old town", "he drank red wine ."]
EXAMPLES = [TextPair(text, None, None, f"x, line {n}") for n, text in enumerate(TEXTS)]


def prepared(objective, lm, key=0):
    rows = objective.encode(EXAMPLES, lm).take(range(3))
    return rows, objective.prepare(rows, RowRandom(key, [0, 1, 2]), lm.tokenizer.vocabulary)


def test_tokens_are_deleted_and_the_text_is_the_target():
    objective, lm = untrained(TSDAE.from_tree({}), EXAMPLES, "bert")
    deleted = words = 0
    for key in range(150):
        rows, batch = prepared(objective, lm, key)
        mask = batch.attention_mask
        lengths = [batch.input_ids.shape[1]] * 3 if mask is None else mask.sum(axis=1)
        for n, text in enumerate(TEXTS):
            whole = rows.input_ids[n][: rows.lengths[n]]
            left = batch.input_ids[n][: lengths[n]]
            kept = iter(whole)
            assert all(token in kept for token in left)  # in their order
            assert (left[0], left[-1]) == (whole[0], whole[-1])
            words += len(text.split())
            deleted += len(whole) - len(left)
            labels = batch.labels[n][batch.labels[n] >= 0]
            assert [whole[0], *labels] == [*batch.decoder_input_ids[n][: len(labels)], whole[-1]]
            assert [whole[0], *labels] == whole.tolist()
    assert abs(deleted / words - 0.6) < 0.04


@pytest.mark.parametrize("pooling", ["mean", "first", "last"])
@double_precision()
def test_the_decoder_sees_the_pooled_vector_and_nothing_else(pooling):
    objective, lm = untrained(TSDAE.from_tree({"pooling": pooling}), EXAMPLES, "bert")
    _, batch = prepared(objective, lm)
    model, tensors = lm.module.eval(), to_device(batch, CPU)
    # Decoding with a cache that remembers this vector in place of an encoder's output.
    [encoder] = objective.models_to_save(model).values()
    texts = [ids[: mask.sum()] for ids, mask in zip(batch.input_ids, batch.attention_mask)]
    hidden = [encoder(torch.from_numpy(ids)[None])[0] for ids in texts]
    pooled = {"mean": lambda x: x.mean(0), "first": lambda x: x[0], "last": lambda x: x[-1]}
    vectors = torch.stack([pooled[pooling](one) for one in hidden])
    cache = model.new_cache(3, batch.labels.shape[1])
    cache.set_encoder_output(torch.arange(3), vectors[:, None])
    states = model(
        decoder_input_ids=torch.from_numpy(np.ascontiguousarray(batch.decoder_input_ids)),
        cache=cache,
    )
    logits, labels = model.logits(states).transpose(1, 2), torch.from_numpy(batch.labels)
    expected = F.cross_entropy(logits, labels, reduction="sum")
    loss = objective.loss(model, tensors)["loss"]
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)


def test_overfits_and_its_encoder_is_saved_without_the_decoder(tmp_path):
    objective, trained, loss = overfit(TSDAE.from_tree({}), EXAMPLES, "bert", steps=20, lr=5e-3)
    assert loss < 1.0
    [encoder] = objective.models_to_save(trained.module).values()
    spec = trained.spec.replace(heads=())
    lm = LanguageModel(spec, encoder, trained.tokenizer, trained.settings)
    assert objective.evaluate(lm, EXAMPLES).main == "mrr"
    folder = lm.save(tmp_path / "a")
    again = load(folder)
    assert (again.spec.family, again.settings.task, again.pooling) == (
        "encoder-only", "contrastive", "mean",
    )  # fmt: skip
    torch.testing.assert_close(again.embed(TEXTS), lm.embed(TEXTS))
    # A checkpoint of a run has the decoder, too.
    write_safetensors(folder / "model.safetensors", trained.module.state_dict())
    assert read_model(folder).state_dict().keys() == encoder.state_dict().keys()


@pytest.mark.parametrize("name", ["t5-mini", "gpt2-mini", "lstm-mini", "longformer-mini"])
def test_models_that_are_no_encoders_are_refused(name):
    with pytest.raises(RecipeError, match="tsdae"):
        TSDAE.from_tree({}).heads(presets[name])
