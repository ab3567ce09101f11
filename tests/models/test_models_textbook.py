"""The textbook's listing of a Transformer, from its formulas, beside the recipe of that name."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from small_models import random_model
from torch.nn import functional as F

from trivium.data.batch import IGNORE_INDEX, Batch
from trivium.models import build, num_parameters
from trivium.objectives.tensor_batch import to_device
from trivium.presets import presets
from trivium.train.recipe_loading import load_recipe

pytestmark = pytest.mark.usefixtures("double_precision")

PAD, SOURCES, TARGETS, WIDTH, HEADS, LAYERS = 0, 31, 29, 24, 3, 2
STACK = {"num_layers": LAYERS, "layers.feed_forward.d_ff": 53}
STACK |= {"layers.mixer.num_heads": HEADS, "layers.mixer.head_dim": WIDTH // HEADS}
SIZES = {f"model.{stack}.{key}": size for stack in ("encoder", "decoder")
         for key, size in STACK.items()}  # fmt: skip
SIZES |= {"model.d_model": WIDTH, "model.embedding.scale": WIDTH**0.5}


def normed(w, name, x):
    """alpha (x - mean) / (s + eps) + b, the deviation s with n - 1."""
    centred = x - x.mean(-1, keepdim=True)
    deviation = (centred.square().sum(-1, keepdim=True) / (x.shape[-1] - 1)).sqrt()
    return w[f"{name}.weight"] * centred / (deviation + 1e-6) + w[f"{name}.bias"]


def linear(w, name, x):
    return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]


def attention(w, name, x, y, allowed):
    """softmax(Q K^T / sqrt(d_k)) V of all heads side by side, through the output matrix."""

    def heads(which, z):
        return linear(w, f"{name}.{which}", z).unflatten(-1, (HEADS, -1)).transpose(1, 2)

    scores = heads("query", x) @ heads("key", y).mT / math.sqrt(WIDTH // HEADS)
    shares = scores.masked_fill(~allowed, -1e9).softmax(-1)
    return linear(w, f"{name}.output", (shares @ heads("value", y)).transpose(1, 2).flatten(2))


def embedded(table, ids):
    """sqrt(d) times the token's vector, plus sines and cosines of its position."""
    position, pair = torch.arange(ids.shape[1])[:, None], torch.arange(WIDTH // 2)
    angle = position / 10_000 ** (2 * pair / WIDTH)
    waves = torch.stack((angle.sin(), angle.cos()), -1).flatten(1)
    return table[ids] * math.sqrt(WIDTH) + waves


def stack(w, name, x, own, encoded=None, of_source=None):
    """Each sublayer is added to what it reads, and the sum normalised; a norm after all."""
    for layer in (f"{name}.layers.{i}" for i in range(LAYERS)):
        y = attention(w, f"{layer}.mixer", x, x, own)
        x = normed(w, f"{layer}.mixer_residual.post_norm", x + y)
        if encoded is not None:
            y = attention(w, f"{layer}.cross_attention", x, encoded, of_source)
            x = normed(w, f"{layer}.cross_residual.post_norm", x + y)
        y = linear(w, f"{layer}.feed_forward.up", x).clamp(min=0)
        y = linear(w, f"{layer}.feed_forward.down", y)
        x = normed(w, f"{layer}.feed_forward_residual.post_norm", x + y)
    return normed(w, f"{name}.norm", x)


def listing(w, source, target):
    """Logits [B, T, V] of the tokens after those of the target."""
    seen = (source != PAD)[:, None, None, :]
    causal = torch.ones(target.shape[1], target.shape[1]).tril().bool()
    own = causal & (target != PAD)[:, None, None, :]
    encoded = stack(w, "encoder", embedded(w["source_tokens.weight"], source), seen)
    x = embedded(w["tokens.weight"], target)
    return linear(w, "heads.lm", stack(w, "decoder", x, own, encoded, seen))


def recipe_and_spec(*changes):
    recipe = load_recipe("textbook-transformer", SIZES | dict(changes))
    spec = recipe.model.build_spec()
    return recipe, spec.replace(vocab_size=TARGETS, source_vocab_size=SOURCES)


def test_the_recipe_computes_and_learns_as_the_listing():
    recipe, spec = recipe_and_spec()
    model = random_model(spec)
    w = {
        name: weight.detach().clone().requires_grad_() for name, weight in model.named_parameters()
    }
    source, target = torch.randint(1, SOURCES, (3, 7)), torch.randint(1, TARGETS, (3, 6))
    source[1, 4:], target[2, 3:] = PAD, PAD
    read, wanted = target[:, :-1], target[:, 1:]
    batch = to_device(
        Batch(
            source.numpy(),
            attention_mask=(source != PAD).long().numpy(),
            decoder_input_ids=read.numpy(),
            decoder_attention_mask=(read != PAD).long().numpy(),
            labels=np.where(wanted == PAD, IGNORE_INDEX, wanted),
        ),
        torch.device("cpu"),
    )
    adam = torch.optim.Adam(w.values(), lr=1e-4, betas=(0.9, 0.98), eps=1e-9)
    ours = recipe.optimizer.build(model)
    for step in range(3):
        logits = listing(w, source, read)
        real = read != PAD
        found = model.logits(model(**batch.inputs))
        torch.testing.assert_close(found[real], logits[real], rtol=1e-9, atol=1e-9)
        loss = F.cross_entropy(logits.flatten(0, 1), wanted.flatten(), ignore_index=PAD)
        terms = recipe.objective.loss(model, batch)["loss"] / len(batch.targets)
        assert terms.item() == pytest.approx(loss.item(), rel=1e-10)
        for optimizers, total in (([adam], loss), (ours, terms)):
            for optimizer in optimizers:
                optimizer.zero_grad()
            total.backward()
            assert math.isinf(recipe.train.clip)
            for optimizer in optimizers:
                optimizer.step()
                for group in optimizer.param_groups:
                    assert group["lr"] * recipe.schedule.factor(step, 0.1 * step) == 1e-4
    # A bias of keys has no gradient but rounding, which Adam makes steps of.
    for name, weight in model.named_parameters():
        if not name.endswith("key.bias"):
            torch.testing.assert_close(weight, w[name], rtol=1e-9, atol=1e-9)


def test_its_weights_start_uniform_and_hidden_units_are_dropped():
    _, spec = recipe_and_spec()
    model = build(spec, seed=0)
    for name, weight in model.named_parameters():
        if weight.ndim > 1:  # also tables
            bound = math.sqrt(6 / sum(weight.shape))
            assert 0.9 * bound < weight.abs().max() <= bound, name
    network, x = model.encoder.layers[0].feed_forward, torch.randn(5, 7, WIDTH)
    torch.manual_seed(3)
    hidden = F.dropout(network.up(x).relu(), 0.1)
    torch.manual_seed(3)
    torch.testing.assert_close(network(x)[0], network.down(hidden))
    assert spec.with_dropout(0.3).decoder.every_layer[0].feed_forward.dropout == 0.3


def test_other_listings_are_one_key_away():
    _, spec = recipe_and_spec(("model.preset", "textbook-transformer-base-pre-norm"))
    layers = [layer for stack in spec.stacks for layer in stack.every_layer]
    assert {(layer.norm_placement, layer.norm.kind) for layer in layers} == {("pre", "layer")}
    assert load_recipe("textbook-transformer-mini").optimizer.betas == (0.9, 0.98)


@pytest.mark.parametrize("name", [name for name in presets if name.startswith("textbook-")])
def test_a_preset_has_as_many_weights_as_its_listing(name):
    """Two vocabularies of 37,000, six layers in each stack, and an output layer of its own."""
    with torch.device("meta"):
        # batch_first has no effect on the weights; without it PyTorch warns.
        layers = torch.nn.Transformer(512, 8, 6, 6, 2048, batch_first=True)
        tables = [torch.nn.Embedding(37_000, 512) for _ in range(2)]
        whole = torch.nn.ModuleList([layers, *tables, torch.nn.Linear(512, 37_000)])
    listed = sum(weight.numel() for weight in whole.parameters())
    assert num_parameters(presets[name]) == listed == 101_009_544
