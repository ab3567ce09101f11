"""BERT, GPT-2 and LLaMA against `transformers`: random weights, logits, losses, gradients."""

from __future__ import annotations

import pytest
import torch
from hf_weights import (
    bert_table,
    copy_bert,
    copy_gpt2,
    copy_llama,
    gpt2_table,
    gradients,
    llama_table,
    randomize,
)
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForPreTraining,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
)

from trivium.models import build
from trivium.nn.cache import Cache
from trivium.objectives import TensorBatch
from trivium.objectives.base import token_loss

# Distinct primes (or products of them) for every axis: a swapped pair of axes cannot pass.
ROWS, LENGTH, VOCABULARY = 3, 17, 101
TOLERANCE = 1e-4


def make_bert(cls=BertForPreTraining, **changes):
    config = BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=7 * 5,
        num_hidden_layers=2,
        num_attention_heads=5,
        intermediate_size=53,
        max_position_embeddings=23,
        type_vocab_size=3,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        **changes,
    )
    return randomize(cls(config), 11).eval()


def make_gpt2(**changes):
    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_embd=7 * 5,
        n_layer=3,
        n_head=5,
        n_inner=53,
        n_positions=23,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=0,
        **changes,
    )
    return randomize(GPT2LMHeadModel(config), 13).eval()


def make_llama(*, heads=6, kv_heads=2, tied=False, **changes):
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=7 * heads,
        head_dim=10,
        num_hidden_layers=3,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        intermediate_size=53,
        max_position_embeddings=64,
        tie_word_embeddings=tied,
        **changes,
    )
    return randomize(LlamaForCausalLM(config), 17).eval()


LLAMAS = {
    "grouped": {"heads": 6, "kv_heads": 2},
    "grouped-tied": {"heads": 6, "kv_heads": 3, "tied": True},
    "multi-query": {"heads": 5, "kv_heads": 1},
    "multi-head": {"heads": 5, "kv_heads": 5, "rms_norm_eps": 1e-5},
    "theta": {"rope_parameters": {"rope_type": "default", "rope_theta": 500_000.0}},
    "biases": {"attention_bias": True, "mlp_bias": True},
}


def random_ids(high=VOCABULARY, rows=ROWS, length=LENGTH):
    return torch.randint(0, high, (rows, length))


def assert_close(ours, theirs, name=""):
    difference = (ours - theirs).abs().max().item()
    scale = theirs.abs().max().item()
    assert difference <= TOLERANCE * scale, f"{name}: {difference} of {scale}"


def assert_same_gradients(model, expected):
    ours = {name: weight.grad for name, weight in model.named_parameters()}
    assert ours.keys() == expected.keys()
    # A key's bias shifts all scores of a query alike, so its gradient is rounding noise.
    largest = max(gradient.abs().max().item() for gradient in expected.values())
    for name, gradient in expected.items():
        assert ours[name] is not None, f"{name} has no gradient"
        difference = (ours[name] - gradient).abs().max().item()
        bound = TOLERANCE * max(gradient.abs().max().item(), 1e-2 * largest)
        assert difference <= bound, f"{name}: {difference} of {gradient.abs().max().item()}"


def labelled(labels, **inputs):
    """Labels [B, T] with -100 where there is no loss, as the loop hands them to a model."""
    flat = labels.flatten()
    positions = (flat != -100).nonzero()[:, 0]
    return TensorBatch(inputs, positions, flat[positions])


def padding(lengths):
    return (torch.arange(LENGTH) < torch.tensor(lengths)[:, None]).long()


@pytest.mark.parametrize("activation", ["gelu", "gelu_new", "relu"])
def test_bert_logits(activation):
    theirs = make_bert(hidden_act=activation)
    ours, ids, types = copy_bert(theirs), random_ids(), random_ids(3)
    mask = padding([17, 11, 5])
    for named in ({}, {"token_type_ids": types}, {"token_type_ids": types, "attention_mask": mask}):
        expected = theirs(ids, **named)
        for context in (torch.no_grad, torch.enable_grad):
            with context():
                hidden = ours(ids, **named)
                logits, nsp = ours.logits(hidden), ours.heads["nsp"](hidden)
            real = named.get("attention_mask", torch.ones_like(ids)).bool()
            assert_close(logits[real], expected.prediction_logits[real], "mlm")
            assert_close(nsp, expected.seq_relationship_logits, "nsp")


def test_bert_padded_rows_equal_unpadded_ones():
    theirs = make_bert()
    ours, ids, lengths = copy_bert(theirs), random_ids(), [17, 11, 5]
    with torch.no_grad():
        padded = ours.logits(ours(ids, attention_mask=padding(lengths)))
        for row, length in enumerate(lengths):
            alone = theirs(ids[row : row + 1, :length]).prediction_logits[0]
            assert_close(padded[row, :length], alone)


def test_bert_loss_and_gradients():
    theirs = make_bert()
    ours, ids, types, mask = copy_bert(theirs), random_ids(), random_ids(3), padding([17, 13, 7])
    labels = torch.where((torch.rand(ids.shape) < 0.3) & mask.bool(), random_ids(), -100)
    relation = torch.tensor([1, 0, 1])
    inputs = {"token_type_ids": types, "attention_mask": mask}
    expected = theirs(ids, labels=labels, next_sentence_label=relation, **inputs).loss
    expected.backward()

    batch = labelled(labels, input_ids=ids, **inputs)
    loss = token_loss(ours, batch)
    nsp = torch.nn.functional.cross_entropy(
        ours.heads["nsp"](ours(ids, **inputs)), relation, reduction="mean"
    )
    total = loss.sum / loss.count + nsp
    total.backward()
    assert total.item() == pytest.approx(expected.item(), rel=1e-5)
    assert_same_gradients(ours, gradients(theirs, bert_table(theirs)))


def test_bert_for_masked_lm_alone():
    theirs = make_bert(BertForMaskedLM)
    ours, ids = copy_bert(theirs), random_ids()
    with torch.no_grad():
        assert_close(ours.logits(ours(ids)), theirs(ids).logits)


def test_gpt2_logits():
    theirs = make_gpt2()
    ours, ids, mask = copy_gpt2(theirs), random_ids(), padding([17, 13, 2])
    for context in (torch.no_grad, torch.enable_grad):
        with context():
            assert_close(ours.logits(ours(ids)), theirs(ids).logits)
            padded = ours.logits(ours(ids, attention_mask=mask))
            assert_close(padded[mask.bool()], theirs(ids, attention_mask=mask).logits[mask.bool()])


@pytest.mark.parametrize("name", LLAMAS)
def test_llama_logits(name):
    theirs = make_llama(**LLAMAS[name])
    ours, ids, mask = copy_llama(theirs), random_ids(), padding([17, 13, 2])
    for context in (torch.no_grad, torch.enable_grad):
        with context():
            assert_close(ours.logits(ours(ids)), theirs(ids).logits)
            padded = ours.logits(ours(ids, attention_mask=mask))
            assert_close(padded[mask.bool()], theirs(ids, attention_mask=mask).logits[mask.bool()])


def test_llama_positions_that_do_not_start_at_zero():
    theirs = make_llama()
    ours, ids = copy_llama(theirs), random_ids()
    positions = torch.arange(5, 5 + 2 * LENGTH, 2)[None].expand(ROWS, -1)
    with torch.no_grad():
        found = ours.logits(ours(ids, position_ids=positions))
        assert_close(found, theirs(ids, position_ids=positions).logits)


@pytest.mark.parametrize("name", ["gpt2", *LLAMAS])
def test_causal_loss_and_gradients(name):
    if name == "gpt2":
        theirs, copy, table = make_gpt2(), copy_gpt2, gpt2_table
    else:
        theirs, copy, table = make_llama(**LLAMAS[name]), copy_llama, llama_table
    ours, ids = copy(theirs), random_ids()
    given = torch.where(torch.rand(ids.shape) < 0.2, -100, ids)
    expected = theirs(ids, labels=given).loss
    expected.backward()

    shifted = torch.full_like(given, -100)
    shifted[:, :-1] = given[:, 1:]
    loss = token_loss(ours, labelled(shifted, input_ids=ids))
    (loss.sum / loss.count).backward()
    assert loss.sum.item() / loss.count == pytest.approx(expected.item(), rel=1e-5)
    assert_same_gradients(ours, gradients(theirs, table(theirs)))


def test_token_by_token_with_a_cache_equals_theirs():
    for theirs, copy in ((make_gpt2(), copy_gpt2), (make_llama(), copy_llama)):
        ours, ids = copy(theirs), random_ids()
        stack = ours.spec.decoder
        cache = Cache(stack, ROWS, LENGTH, dtype=torch.float32, device="cpu")
        with torch.no_grad():
            expected = theirs(ids).logits
            for step in range(LENGTH):
                logits = ours.logits(ours(ids[:, step : step + 1], cache=cache))
                assert_close(logits[:, 0], expected[:, step], f"step {step}")


def test_a_copy_is_not_the_initialisation():
    """The helper would prove nothing if our own starting weights were left standing."""
    theirs = make_gpt2()
    ours = copy_gpt2(theirs)
    fresh = dict(build(ours.spec).named_parameters())
    for name, weight in ours.named_parameters():
        assert not torch.equal(weight, fresh[name]), name
