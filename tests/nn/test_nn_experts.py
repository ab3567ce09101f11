"""Experts against the papers' formulas in float64, and what becomes of their loss."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from double import double_precision
from hugging_face import normal
from small_models import SPECS, WIDTH, random_ids, random_model, small_model
from transformers import DeepseekV2Config, DeepseekV3Config, Qwen2MoeConfig
from transformers.models.deepseek_v2.modeling_deepseek_v2 import DeepseekV2Moe
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3MoE
from transformers.models.qwen2_moe.modeling_qwen2_moe import Qwen2MoeSparseMoeBlock

from trivium import spec
from trivium.adapt.quantize import pack
from trivium.errors import SpecError
from trivium.model_folder import read_model, write_model
from trivium.models import active_parameters, build, flops_per_token, num_parameters
from trivium.nn import SequenceInfo
from trivium.nn.feed_forwards.experts import ExpertsNetwork
from trivium.spec import Experts

EXPERT = spec.MLP(d_ff=7, activation="tanh", bias=False)
PART = Experts(num_experts=5, top_k=2, expert=EXPERT, aux_loss_coef=0.3)
ROWS, LENGTH = 2, 6


def mixture(x, router, experts, real, chosen):
    """Jiang et al. 2024, section 2.1 and Fedus et al. 2021, equations 4 to 6, token by token."""
    y, counts, probabilities = np.zeros_like(x), np.zeros(5), np.zeros(5)
    for index in np.ndindex(x.shape[:-1]):
        p = np.exp(router @ x[index])
        p /= p.sum()
        best = sorted(range(5), key=lambda i: -p[i])[:chosen]
        for i in best:
            up, down = experts[i]
            y[index] += p[i] / sum(p[best]) * (down @ np.tanh(up @ x[index]))
            counts[i] += real[index]
        probabilities += real[index] * p
    return y, 0.3 * 5 * (counts * probabilities).sum() / max(1, real.sum()) ** 2


@double_precision()
def test_a_mixture_is_the_formula_and_only_chosen_experts_compute():
    x, padding = torch.randn(ROWS, LENGTH, WIDTH), torch.tensor([[1] * 6, [1] * 2 + [0] * 4])
    gather_positions, none = torch.tensor([1, 3, 7, 10]), torch.tensor([], dtype=torch.int64)
    whole, flat, computed = np.ones((ROWS, LENGTH)), x.flatten(0, 1), []
    for chosen in (1, 2, 3):
        network = ExpertsNetwork(PART.replace(top_k=chosen), WIDTH)
        for expert in network.experts:
            expert.register_forward_hook(lambda _, inputs, __: computed.append(len(inputs[0])))
        router = network.router.weight.detach().numpy()
        experts = [tuple(w.detach().numpy() for w in e.parameters()) for e in network.experts]
        for vectors, limits, real in (
            (x, {}, whole),
            (x, {"is_token": padding}, padding.numpy()),
            (x, {"documents": 3 * padding}, padding.numpy()),
            (
                flat[gather_positions],
                {"is_token": padding, "gather_positions": gather_positions},
                np.array([1, 1, 1, 0]),
            ),
            (flat[none], {"gather_positions": none}, np.array([])),
        ):
            for training in (True, False):  # without, an expert of no token does not run
                computed.clear()
                y, load = network.train(training)(vectors, SequenceInfo.of_length(LENGTH, **limits))
                expected = mixture(vectors.numpy(), router, experts, real, chosen)
                np.testing.assert_allclose(y.detach().numpy(), expected[0], atol=1e-10)
                np.testing.assert_allclose(network.loss(load).item(), expected[1], atol=1e-10)
                assert sum(computed) == chosen * vectors[..., 0].numel()
                assert training or 0 not in computed
    with pytest.raises(SpecError, match="top_k=6 is more than num_experts=5"):
        PART.replace(top_k=6)


@double_precision()
def test_the_loss_is_of_all_layers_of_a_stack_and_weights_that_compute_are_counted():
    bart = SPECS["bart"]
    bart = bart.replace(
        encoder=bart.encoder.with_layers(feed_forward=PART),
        decoder=bart.decoder.with_layers(feed_forward=PART),
    )
    model, loads = random_model(bart), {}
    for module in model.modules():
        if isinstance(module, ExpertsNetwork):
            module.register_forward_hook(lambda of, _, output: loads.update({of: output[1]}))
    _, loss = model.read(random_ids(2, 7), decoder_input_ids=random_ids(2, 5, seed=1))
    expected = 0.0
    for stack in model.stacks:
        counts, probabilities = sum(loads[block.feed_forward] for block in stack.layers)
        tokens = probabilities.sum()
        expected = expected + 0.3 * 5 * (counts * probabilities).sum() / tokens**2
    torch.testing.assert_close(loss, expected, rtol=1e-9, atol=0.0)

    stack, matrix = SPECS["gpt2"].decoder, 2 * 7 * WIDTH
    sparse, dense = (
        SPECS["gpt2"].replace(decoder=stack.with_layers(feed_forward=part))
        for part in (PART, EXPERT.replace(d_ff=14))
    )
    assert num_parameters(sparse) - active_parameters(sparse) == 2 * 3 * matrix
    assert active_parameters(sparse) - num_parameters(dense) == 2 * 5 * WIDTH  # the router
    more = flops_per_token(sparse, LENGTH) - flops_per_token(dense, LENGTH)
    assert more == 6 * 2 * 5 * WIDTH


def test_experts_of_8_bits_generate():
    """Also where a token leaves some experts without rows."""
    part = PART.replace(expert=EXPERT.replace(d_ff=64))
    described = SPECS["gpt2"].replace(decoder=SPECS["gpt2"].decoder.with_layers(feed_forward=part))
    with torch.no_grad():
        exact = build(described, seed=0).eval()
        ids = random_ids(1, 9)
        expected = exact.logits(exact(ids))
        packed = pack(exact, "int8")
        cache = packed.new_cache(1, 9)
        parts = [packed.logits(packed(each, cache=cache)) for each in ids.split([7, 1, 1], 1)]
    error = (torch.cat(parts, 1) - expected).abs().max() / expected.abs().max()
    assert error < 0.05


NUM_EXPERTS = 12
SWIGLU = spec.MLP(d_ff=7, activation="silu", gated=True, bias=False)
MANY = Experts(num_experts=NUM_EXPERTS, top_k=4, expert=SWIGLU, normalized=False)
V2 = MANY.replace(shared=SWIGLU.replace(d_ff=14))
V3 = V2.replace(scores="sigmoid", corrected=True, scores_per_group=2)
QWEN2 = MANY.replace(shared=SWIGLU.replace(d_ff=5), shared_gate=True)
GROUPS = {"num_groups": 4, "top_k_groups": 2}


def deepseek_v2(part):
    method = "greedy" if part.num_groups == 1 else "group_limited_greedy"
    return DeepseekV2Moe(deepseek_config(DeepseekV2Config, part, topk_method=method))


def deepseek_v3(part):
    return DeepseekV3MoE(deepseek_config(DeepseekV3Config, part, norm_topk_prob=part.normalized))


def deepseek_config(kind, part, **more):
    return kind(
        hidden_size=WIDTH,
        num_attention_heads=2,
        num_key_value_heads=2,
        moe_intermediate_size=part.d_ff,
        n_shared_experts=part.shared.d_ff // part.d_ff,
        n_routed_experts=part.num_experts,
        num_experts_per_tok=part.top_k,
        n_group=part.num_groups,
        topk_group=part.top_k_groups,
        routed_scaling_factor=part.scale,
        experts_implementation="eager",
        **more,
    )


def qwen2_moe(part):
    config = Qwen2MoeConfig(
        hidden_size=WIDTH,
        moe_intermediate_size=part.d_ff,
        shared_expert_intermediate_size=part.shared.d_ff,
        num_experts=part.num_experts,
        num_experts_per_tok=part.top_k,
        norm_topk_prob=part.normalized,
        experts_implementation="eager",
    )
    return Qwen2MoeSparseMoeBlock(config)


def copy_weights(network, theirs):
    """The weights of a network, by the names that `transformers` has for them in memory."""
    shared = "shared_expert" if network.shared_gate is not None else "shared_experts"
    weights = {"gate.weight": network.router.weight}
    for name in ("gate", "up", "down"):
        weights[f"{shared}.{name}_proj.weight"] = getattr(network.shared, name).weight
    pairs = [torch.cat((expert.gate.weight, expert.up.weight)) for expert in network.experts]
    weights["experts.gate_up_proj"] = torch.stack(pairs)
    weights["experts.down_proj"] = torch.stack([expert.down.weight for expert in network.experts])
    if network.shared_gate is not None:
        weights["shared_expert_gate.weight"] = network.shared_gate.weight
    if network.correction is not None:
        weights["gate.e_score_correction_bias"] = network.correction
    theirs.load_state_dict(weights)


def random_network(part):
    network, generator = ExpertsNetwork(part, WIDTH), torch.Generator().manual_seed(3)
    with torch.no_grad():
        for weight in (*network.parameters(), *network.buffers()):
            weight.copy_(0.5 * normal(weight.shape, generator))
    return network


@pytest.mark.parametrize(
    ("part", "reference"),
    [
        pytest.param(V2, deepseek_v2, id="deepseek-v2-greedy"),
        pytest.param(V2.replace(**GROUPS, scale=16.0), deepseek_v2, id="deepseek-v2-groups"),
        pytest.param(V2.replace(**GROUPS, top_k=6), deepseek_v2, id="deepseek-v2-all-of-groups"),
        pytest.param(
            V3.replace(**GROUPS, scale=2.5, normalized=True), deepseek_v3, id="deepseek-v3"
        ),
        pytest.param(V3.replace(top_k=1), deepseek_v3, id="deepseek-v3-unnormalized"),
        pytest.param(
            V3.replace(num_groups=6, top_k_groups=3, top_k=5),
            deepseek_v3,
            id="deepseek-v3-small-groups",
        ),
        pytest.param(QWEN2, qwen2_moe, id="qwen2-moe"),
        pytest.param(QWEN2.replace(top_k=2, normalized=True), qwen2_moe, id="qwen2-normalized"),
    ],
)
@double_precision()
def test_routers_and_shared_experts_equal_transformers(part, reference):
    network, theirs = random_network(part), reference(part)
    copy_weights(network, theirs)
    x, direction = torch.randn(2, ROWS, LENGTH, WIDTH)
    ours, inputs = x.clone().requires_grad_(), x.clone().requires_grad_()
    y, expected = network(ours)[0], theirs(inputs)
    torch.testing.assert_close(y, expected, rtol=1e-9, atol=1e-12)
    (y * direction).sum().backward()
    (expected * direction).sum().backward()
    close = {"rtol": 1e-8, "atol": 1e-12}
    torch.testing.assert_close(ours.grad, inputs.grad, **close)
    torch.testing.assert_close(network.router.weight.grad, theirs.gate.weight.grad, **close)
    down = torch.stack([expert.down.weight.grad for expert in network.experts])
    torch.testing.assert_close(down, theirs.experts.down_proj.grad, **close)
    if part.shared_gate:
        of_gate = theirs.shared_expert_gate.weight.grad
        torch.testing.assert_close(network.shared_gate.weight.grad, of_gate, **close)
    # A token is routed alike, whatever the others are.
    alone = torch.cat([network(row)[0] for row in x.flatten(0, 1).split(1)])
    torch.testing.assert_close(alone.view_as(y), y, rtol=1e-9, atol=1e-12)


@double_precision()
def test_the_correction_chooses_experts_and_weighs_none():
    part = V3.replace(top_k=3, shared=None)
    network, x = random_network(part), torch.randn(LENGTH, WIDTH)
    with torch.no_grad():
        network.correction.zero_()
        network.correction[[2, 5, 7]] = 10.0
    scores = network.router(x).sigmoid()
    expected = sum(scores[:, i, None] * network.experts[i](x)[0] for i in (2, 5, 7))
    y, (counts, _) = network(x)
    torch.testing.assert_close(y, expected, rtol=1e-9, atol=1e-12)
    assert counts.nonzero().flatten().tolist() == [2, 5, 7]
    y.sum().backward()
    assert network.correction.grad is None
    assert network.router.weight.grad.any()


@double_precision()
def test_the_balance_loss_of_sigmoid_scores_is_of_their_shares():
    """DeepSeek-V3 (DeepSeek-AI 2024), equations 17 to 20, times the number of choices."""
    network, x = random_network(V3.replace(aux_loss_coef=0.3)), torch.randn(LENGTH, WIDTH)
    scores = network.router(x).sigmoid()
    chosen = (scores + network.correction).topk(V3.top_k).indices
    often = torch.stack([(chosen == i).any(-1).sum() / LENGTH for i in range(NUM_EXPERTS)])
    shares = (scores / scores.sum(-1, keepdim=True)).mean(0)
    expected = 0.3 * NUM_EXPERTS * (often * shares).sum()
    torch.testing.assert_close(network.loss(network(x)[1]), expected, rtol=1e-9, atol=0.0)


def test_the_shared_network_always_computes_and_changes_with_the_others():
    stack, matrix = SPECS["gpt2"].decoder, 2 * 7 * WIDTH
    described = SPECS["gpt2"].replace(decoder=stack.with_layers(feed_forward=PART))
    shared = PART.replace(shared=EXPERT.replace(d_ff=14), shared_gate=True, corrected=True)
    more = SPECS["gpt2"].replace(decoder=stack.with_layers(feed_forward=shared))
    per_layer = 2 * matrix + WIDTH
    assert active_parameters(more) - active_parameters(described) == 2 * per_layer
    assert num_parameters(more) - num_parameters(described) == 2 * per_layer
    flops = flops_per_token(more, LENGTH) - flops_per_token(described, LENGTH)
    assert flops == 6 * 2 * per_layer
    kept = shared.activation_numel(WIDTH) - PART.activation_numel(WIDTH)
    assert kept == shared.shared.activation_numel(WIDTH) + WIDTH + 1
    assert shared.scale_width(0.5).shared.d_ff == 7
    assert PART.scale_width(0.5).shared is None
    dropped = shared.replace(shared=EXPERT.replace(dropout=0.1)).with_dropout(0.2)
    assert (dropped.shared.dropout, dropped.expert.dropout) == (0.2, 0.0)


def test_the_correction_is_saved_and_loaded(tmp_path):
    model = small_model("grouped-experts")
    corrections = [w for name, w in model.named_buffers() if name.endswith("correction")]
    for number, correction in enumerate(corrections, start=1):
        correction.fill_(0.5 * number)
    write_model(tmp_path, model, None)
    state = read_model(tmp_path).state_dict()
    names = [name for name in state if name.endswith("correction")]
    assert [state[name].unique().tolist() for name in names] == [[0.5], [1.0]]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_groups": 5}, "num_experts=12 is not a multiple of num_groups=5"),
        ({"num_groups": 4, "top_k_groups": 5}, "top_k_groups=5 is more than num_groups=4"),
        ({**GROUPS, "scores_per_group": 4}, r"scores_per_group=4 is more than .*=3"),
        ({**GROUPS, "top_k": 7}, "top_k=7 is more than the 6 experts in .* groups of 3"),
        ({"top_k": 13}, "top_k=13 is more than num_experts=12"),
        ({"shared_gate": True}, "shared_gate=True needs a shared network"),
        ({"scale": 0.0}, "scale: expected"),
    ],
    ids=lambda value: None if isinstance(value, dict) else value.split("=")[0],
)
def test_settings_that_do_not_fit_are_errors(changes, message):
    with pytest.raises(SpecError, match=message):
        MANY.replace(**changes)
