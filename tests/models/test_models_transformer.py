"""What `build` makes of a spec, what the models compute, and what they refuse."""

from __future__ import annotations

import copy

import pytest
import torch
from small_models import (
    ALL_SPECS,
    BOTH,
    DECODERS,
    MAX_LENGTH,
    SOURCE_VOCABULARY,
    SPECS,
    VOCABULARY,
    WIDTH,
    inputs_for,
    random_ids,
    random_model,
    small_model,
)
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from trivium import spec
from trivium.errors import SpecError
from trivium.models import build, flops_per_token, num_parameters
from trivium.models.electra import build_with_generator, generator_spec
from trivium.models.transformer import add_queries
from trivium.nn import LayerContext, SequenceInfo

pytestmark = pytest.mark.usefixtures("double_precision")


@pytest.mark.parametrize("name", ALL_SPECS)
def test_shapes_and_losses_of_every_family(name):
    positions, targets = torch.tensor([0, 7, 30, 32]), torch.tensor([5, 0, 42, 5])
    model, ids = small_model(name), random_ids(3, 11)
    hidden = model(**inputs_for(name, ids))
    logits = model.logits(hidden)
    assert hidden.shape[:2] == (3, 11)
    assert logits.shape == (3, 11, VOCABULARY)
    loss = model.lm_loss(hidden.flatten(0, 1)[positions], targets)
    expected = F.cross_entropy(logits.flatten(0, 1)[positions], targets, reduction="sum")
    assert loss.item() == pytest.approx(expected.item(), rel=1e-9)


@pytest.mark.parametrize(("name", "described"), ALL_SPECS.items(), ids=ALL_SPECS)
def test_a_model_built_on_meta_and_loaded_is_the_model(name, described):
    """No number of a model is outside its state, ALiBi's slopes included."""
    model, ids = small_model(name), random_ids(2, 7)
    empty = build(described, device="meta").eval()
    assert all(weight.is_meta for weight in empty.parameters())
    empty.load_state_dict(model.state_dict(), strict=True, assign=True)
    assert all(not buffer.is_meta for buffer in empty.buffers())
    inputs = inputs_for(name, ids)
    assert torch.equal(empty(**inputs), model(**inputs))
    assert num_parameters(described) == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_positions_end_where_the_spec_says(name):
    model = small_model(name)
    model(random_ids(1, MAX_LENGTH))
    with pytest.raises(SpecError, match=r"38 tokens.*at most 37"):
        model(random_ids(1, MAX_LENGTH + 1))


def test_caches_end_where_positions_do():
    with pytest.raises(SpecError, match=r"38 tokens.*at most 37"):
        small_model("gpt2").new_cache(2, MAX_LENGTH + 1)
    assert small_model("llama")(random_ids(1, 101)).shape == (1, 101, WIDTH)


def test_defaults_of_token_types_and_positions():
    model, ids = small_model("bert"), random_ids(2, 7)
    plain = model(ids)
    positions = torch.arange(7)[None].expand(2, -1)
    torch.testing.assert_close(plain, model(ids, token_type_ids=0 * ids, position_ids=positions))
    assert not torch.allclose(plain, model(ids, token_type_ids=0 * ids + 1), atol=1e-3)


def test_wrong_inputs_are_refused():
    ids = random_ids(2, 5)
    bert, gpt2, t5, lstm = (small_model(name) for name in ("bert", "gpt2", "t5", "lstm"))
    cache = gpt2.new_cache(2, 7)
    calls = [
        (t5, {"input_ids": ids}, "needs decoder_input_ids"),
        (gpt2, {"input_ids": ids, "decoder_input_ids": ids}, "takes no decoder_input_ids"),
        (gpt2, {}, "input_ids is missing"),
        (gpt2, {"input_ids": ids, "lengths": ids[:, 0]}, "without a cache .* no lengths"),
        (gpt2, {"input_ids": ids, "cache": cache, "attention_mask": ids}, "no attention_mask"),
        (gpt2, {"input_ids": random_ids(2, 8), "cache": cache}, "8 tokens, but slot_length is 7"),
        (bert, {"input_ids": ids, "cache": cache}, "an encoder takes no cache"),
        (t5, {"decoder_input_ids": ids, "cache": t5.new_cache(2, 7)}, "set_encoder_output"),
    ]
    memory = spec.TransformerXLAttention(
        num_heads=2, head_dim=4, memory=5, positions=spec.TransformerXLPositions()
    )
    xlnet = random_model(bert.spec.replace(encoder=bert.spec.encoder.with_layers(mixer=memory)))
    assert xlnet.spec.carries_state
    full = {"input_ids": ids, "lengths": ids[:, 0], "cache": xlnet.new_cache(2, 7)}
    calls.append((xlnet, full, "an encoder takes no lengths"))
    # What only another family reads is refused, never ignored.
    of_encoders, of_decoders = ("order", "predicted", "global_tokens"), ("prefix_lengths",)
    for model, names in ((gpt2, of_encoders), (bert, of_decoders), (t5, ("order", "predicted"))):
        target = {"decoder_input_ids": ids} if model is t5 else {}
        for name in names:
            calls.append((model, {"input_ids": ids, name: ids, **target}, name))
    for model, inputs, message in calls:
        with pytest.raises(SpecError, match=message):
            model(**inputs)
    for model in (lstm, small_model("ngram")):
        with pytest.raises(TypeError, match="token_type_ids"):
            model(ids, token_type_ids=ids)
    for name in ("bert", "bilstm"):
        with pytest.raises(SpecError, match="it has no cache"):
            small_model(name).new_cache(2, 7)
    for method, model in (("encode", gpt2), ("two_ways", lstm)):
        with pytest.raises(SpecError, match="this model"):
            getattr(model, method)(ids)


def test_missing_heads_are_named():
    model = build(SPECS["bert"].replace(heads=(spec.PoolerHead(),)), seed=0)
    hidden = model(random_ids(1, 5))
    assert model.logits(hidden).shape == (1, WIDTH)
    with pytest.raises(SpecError, match='no head of kind "lm"; it has: pooler'):
        model.logits(hidden, head="lm")
    with pytest.raises(SpecError, match="no head over the vocabulary"):
        model.lm_loss(hidden[0], torch.zeros(5, dtype=torch.int64))
    with pytest.raises(SpecError, match="no head; it has: none"):
        build(SPECS["bert"].replace(heads=()), seed=0).logits(hidden)


@pytest.mark.parametrize("name", ["bert", "bilstm"])
def test_heads_of_tasks(name):
    dense = spec.Dense(activation="tanh", norm=True)
    heads = (
        spec.ClassifierHead(num_labels=5, pooling="mean", dense=dense, bias=False),
        spec.TaggerHead(num_labels=3),
        spec.SpanHead(dense=dense),
        spec.ReplacedTokenHead(),
        spec.NSPHead(),
    )
    shapes = {"classifier": (3, 5), "tagger": (3, 7, 3), "span": (3, 7, 2), "nsp": (3, 2)}
    shapes["replaced-token"] = (3, 7, 1)
    model = build(ALL_SPECS[name].replace(heads=heads), seed=0).eval()
    hidden = model(random_ids(3, 7))
    for kind, shape in shapes.items():
        assert model.logits(hidden, kind).shape == shape


def test_pooling_reads_real_positions_alone():
    described = SPECS["gpt2"]
    hidden = torch.randn(3, 7, WIDTH)
    mask = torch.tensor([[1] * 7, [1] * 3 + [0] * 4, [0] * 4 + [1] * 3])
    for pooling, expected, padded_left in (
        ("first", hidden[1, 0], None),
        ("last", hidden[1, 2], hidden[2, 6]),
        ("mean", hidden[1, :3].mean(0), hidden[2, 4:].mean(0)),
    ):
        head = spec.ClassifierHead(num_labels=3, pooling=pooling)
        model = build(described.replace(heads=(head,)), seed=0).eval()
        logits = model.logits(hidden, attention_mask=mask)
        classifier = model.heads["classifier"].classifier
        torch.testing.assert_close(logits[1], classifier(expected))
        if padded_left is not None:
            torch.testing.assert_close(logits[2], classifier(padded_left))
        whole = model.logits(hidden[:1, :3]) - model.logits(
            hidden[:1, :3], attention_mask=mask[1:2, :3]
        )
        assert whole.abs().max() < 1e-5


@pytest.mark.parametrize("name", DECODERS)
def test_tied_heads_scales_and_widths(name):
    model, head = small_model(name), ALL_SPECS[name].heads[0]
    hidden, weights = torch.randn(5, WIDTH), model.state_dict()
    matrix = weights["tokens.weight" if head.tied else "heads.lm.weight"]
    if name == "opt":
        matrix = matrix @ weights["heads.lm.projection.weight"]
    expected = head.scale * hidden @ matrix.T + weights.get("heads.lm.bias", 0.0)
    if head.soft_cap is not None:
        expected = head.soft_cap * torch.tanh(expected / head.soft_cap)
    torch.testing.assert_close(model.logits(hidden), expected, rtol=1e-9, atol=1e-9)


def test_shared_layers_first_norms_and_two_vocabularies():
    albert, state = small_model("albert"), small_model("modernbert").state_dict()
    calls = []
    albert.encoder.layers[0].register_forward_hook(lambda *_: calls.append(1))
    albert(random_ids(1, 5))
    assert (len(albert.encoder.layers), len(calls)) == (1, 3)
    assert "encoder.layers.0.mixer_residual.pre_norm.weight" not in state
    assert "encoder.layers.1.mixer_residual.pre_norm.weight" in state
    highest = torch.full((2, 7), SOURCE_VOCABULARY - 1)
    model = small_model("transformer-two-vocabularies")
    assert model(highest, decoder_input_ids=random_ids(2, 5)).shape == (2, 5, WIDTH)
    with pytest.raises(IndexError):
        small_model("transformer")(highest, decoder_input_ids=random_ids(2, 5))


def test_a_prefix_is_attended_to_from_before_it():
    model, ids = small_model("gpt2"), random_ids(2, 11)
    prefix = torch.tensor([5, 3])
    hidden = model(ids, prefix_lengths=prefix)
    other = ids.clone()
    other[:, 4] = ids[:, 4] % (VOCABULARY - 1) + 1
    changed = (model(other, prefix_lengths=prefix) - hidden).abs().amax(-1) > 1e-6
    assert changed.tolist() == [[True] * 11, [False] * 4 + [True] * 7]
    with torch.no_grad():
        cache = model.new_cache(2, 11)
        first = model(ids[:, :5], prefix_lengths=prefix, cache=cache, lengths=prefix)
        torch.testing.assert_close(first[0], hidden[0, :5], rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(first[1, :3], hidden[1, :3], rtol=1e-9, atol=1e-9)
        with pytest.raises(SpecError, match="after the first tokens"):
            model(ids[:, 5:], prefix_lengths=prefix, cache=cache)


@pytest.mark.parametrize("name", ["bert", "modernbert", "gpt2"])
def test_a_row_of_padding_alone_stays_finite(name):
    """Such a row fills up the last batch; NaN there would spoil the gradients of all rows."""
    mask = torch.tensor([[1] * 5, [0] * 5])
    for sequence in (torch.no_grad, torch.enable_grad):
        with sequence():
            hidden = small_model(name)(random_ids(2, 5), attention_mask=mask)
        assert hidden.isfinite().all()


@pytest.mark.parametrize("name", ["bert", "gpt2", "t5", "lstm", "ngram"])
def test_dropout_only_while_training(name):
    model, inputs = (
        build(ALL_SPECS[name].with_dropout(0.3), seed=0),
        inputs_for(name, random_ids(2, 7)),
    )
    assert not torch.equal(model(**inputs), model(**inputs))
    model.eval()
    assert torch.equal(model(**inputs), model(**inputs))


def test_a_block_can_be_used_alone():
    """It prepares for itself what a stack prepares for its blocks; a shared table is given."""
    layer = SPECS["llama"].decoder.layers[0]
    block, x = layer.build(WIDTH), torch.randn(2, 5, WIDTH)
    for weight in block.parameters():
        torch.nn.init.normal_(weight)
    last = block(x, SequenceInfo.of_length(5, causal=True))[0][:, :2]
    expected, _ = block(x[:, :2], SequenceInfo.of_length(2, causal=True))
    torch.testing.assert_close(last, expected, rtol=1e-9, atol=1e-9)
    sequence = SequenceInfo.of_length(5)
    prepared = LayerContext(prepared=block.mixer.prepare(sequence))
    given = block(x, sequence, prepared)[0]
    torch.testing.assert_close(given, block(x, sequence)[0], rtol=1e-9, atol=1e-9)
    biased = SPECS["t5"].encoder.layers[0].build(WIDTH)
    with pytest.raises(SpecError, match="new_table"):
        biased(x, sequence)
    table = biased.mixer.new_table()
    torch.nn.init.normal_(table.weight)
    prepared = LayerContext(prepared=biased.mixer.prepare(sequence, table=table))
    assert biased(x, sequence, prepared)[0].shape == x.shape
    with pytest.raises(SpecError, match="needs the encoder's output"):
        layer.build(WIDTH, has_cross_attention=True)(x, sequence)


def test_layers_share_tables_and_what_they_prepare():
    """A table for each kind of relative bias, a mask for each kind of attention."""
    relative = SPECS["t5"].encoder.mixers[0]
    other = relative.replace(positions=spec.RelativeBias(num_buckets=4, max_distance=5))
    mixers = (relative, other, relative.replace(pattern=spec.Sliding(window=2)), other)
    stack = SPECS["t5"].encoder.with_layers(num_layers=4, mixer=mixers)
    model = random_model(SPECS["t5"].replace(encoder=stack, decoder=None, heads=()))
    assert [tuple(table.weight.shape) for table in model.encoder.tables] == [(8, 3), (4, 3)]
    seen = []
    for block in model.encoder.every_layer:
        block.mixer.register_forward_hook(lambda _, args, __: seen.append(args[3]))
    model(random_ids(2, 7))
    assert seen[1] is seen[3]
    sequence = SequenceInfo.of_length(7)
    biases = [prepared.mask.bias(sequence, sequence) for prepared in seen]
    assert torch.equal(biases[0], biases[2])
    assert not torch.allclose(biases[0], biases[1])


@pytest.mark.parametrize("name", ["gpt2", "llama", "alibi"])
def test_two_streams(name):
    """What is predicted sees neither itself nor what is known later (Yang et al. 2019)."""
    length, changed_at = 9, 4
    rank = torch.tensor([3, 8, 0, 5, 4, 1, 7, 2, 6])
    described = SPECS[name]
    mixer = described.decoder.mixers[0]
    windows = (mixer, mixer.replace(pattern=spec.Sliding(window=5)))
    decoder = described.decoder.with_layers(mixer=windows)
    model = random_model(described.replace(decoder=decoder))
    sequence = add_queries(SequenceInfo.of_length(length), rank[None], torch.arange(length)[None])
    tokens = model.tokens(random_ids(1, length)).detach()
    asking = torch.randn(1, 1, tokens.shape[-1]).expand(-1, length, -1)
    other = tokens.clone()
    other[:, changed_at] = torch.randn(tokens.shape[-1])
    for gradient in (True, False):
        with torch.set_grad_enabled(gradient):
            before, after = (
                model.decoder(torch.cat((each, asking), 1), sequence)[0] for each in (tokens, other)
            )
        changed = (before - after).abs().amax(-1)[0] > 1e-9
        content, queries = changed.split(length)
        assert torch.equal(content, rank >= rank[changed_at])
        assert torch.equal(queries, rank > rank[changed_at])


@pytest.mark.parametrize("name", ["bert", "albert", "gpt2", "llama", "opt", "t5", "transformer"])
def test_flops_are_about_those_that_pytorch_counts(name):
    """Within 20 %: at these widths it matters that causal attention counts half."""
    described = SPECS[name].replace(vocab_size=401)
    length = 32  # with two rows no rows of the head are added
    model, ids = build(described, seed=0), torch.ones(2, length, dtype=torch.int64)
    inputs = {"decoder_input_ids": ids} if name in BOTH else {}
    with FlopCounterMode(display=False) as counter:
        hidden = model(ids, **inputs).flatten(0, 1)
        model.lm_loss(hidden, torch.zeros(2 * length, dtype=torch.int64)).backward()
    counted = counter.get_total_flops() / (2 * length)
    assert flops_per_token(described, length) == pytest.approx(counted, rel=0.2)


def test_flops_of_recurrent_networks():
    rnn = ALL_SPECS["lstm"]
    weights = 4 * 13 * (WIDTH + 13) + 4 * 13 * (13 + 13) + 13 * WIDTH
    assert flops_per_token(rnn, 128) == 6 * (weights + VOCABULARY * WIDTH)
    is_bilm = rnn.replace(direction="bilm")
    assert flops_per_token(is_bilm, 128) == 2 * flops_per_token(rnn, 128)


def test_electra_shares_what_its_code_shares():
    """Clark et al. 2020: a quarter as wide, the same token vectors, trained once."""
    discriminator = SPECS["electra"]
    small = generator_spec(discriminator, 0.5)
    assert small.encoder.num_layers == discriminator.encoder.num_layers
    assert small.d_embedding == discriminator.d_embedding
    assert small.d_model == small.encoder.mixers[0].num_heads * small.encoder.mixers[0].head_dim
    # Half as many inputs with a larger deviation: as much variance at the outputs.
    deviation, width = small.initialization.std, small.d_model
    of_discriminator = discriminator.initialization.std**2 * discriminator.d_model
    assert deviation**2 * width == pytest.approx(of_discriminator)
    both = build_with_generator(discriminator, fraction=0.5, seed=3)
    assert len(list(both.blocks)) == 4
    names = [name for name, _ in both.named_parameters() if "tokens" in name]
    assert names == ["discriminator.tokens.weight"]
    assert both.generator.tokens is both.discriminator.tokens
    ids = random_ids(2, 7)
    hidden = both.generator.eval()(ids)
    flat = hidden.flatten(0, 1)
    draws = torch.linspace(0, 0.999, len(flat))
    sums = both.generator.logits(flat).softmax(-1).cumsum(-1)
    expected = (sums <= draws[:, None] * sums[:, -1:]).sum(-1)
    assert torch.equal(both.sample(flat, draws), expected)
    assert both.spec == discriminator
    joined = [name for name, _ in both.named_parameters()]
    both.untie_weights()
    whole = both.generator
    torch.testing.assert_close(whole(ids), hidden)
    assert whole.state_dict().keys() == build(whole.spec, device="meta").state_dict().keys()
    assert whole.tokens is not both.discriminator.tokens
    both.tie_weights()
    assert [name for name, _ in both.named_parameters()] == joined
    with pytest.raises(SpecError, match="is an encoder"):
        generator_spec(SPECS["gpt2"])


def test_gradient_disentangled_token_vectors():
    """He et al. 2021b, equation 5: E_D = stopgrad(E_G) + E_delta, which starts at 0."""
    discriminator, ids = SPECS["electra"], random_ids(2, 7)
    both = build_with_generator(discriminator, sharing="gradient-disentangled", seed=3).eval()
    table, own = both.generator.tokens.weight, both.discriminator.tokens.weight
    assert not own.any()
    before = build(discriminator, seed=3).eval()
    torch.testing.assert_close(both.discriminator(ids), before(ids), rtol=1e-9, atol=1e-9)
    with torch.no_grad():
        own.normal_()
    hidden = both.discriminator(ids)
    hidden[..., 0].sum().backward()
    assert table.grad is None
    assert own.grad[ids].abs().sum(-1).all()
    both.generator(ids)[..., 0].sum().backward()
    assert table.grad[ids].abs().sum(-1).all()
    assert len([name for name in both.state_dict() if "tokens" in name]) == 2
    again = copy.deepcopy(both)
    assert again.discriminator.tokens.shared is again.generator.tokens
    again.untie_weights()
    assert type(again.discriminator.tokens) is torch.nn.Embedding
    torch.testing.assert_close(again.discriminator(ids), hidden)
    assert again.discriminator.state_dict().keys() == before.state_dict().keys()
    again.tie_weights()
    torch.testing.assert_close(again.discriminator.tokens.weight, own)
