"""The loss that training takes, over labelled positions alone, against theirs of all logits."""

from __future__ import annotations

import pytest
import torch
from hugging_face import compare_gradients, ours_of, randomize

from trivium.objectives import TensorBatch
from trivium.objectives.base import token_loss

transformers = pytest.importorskip("transformers")

VOCABULARY, LENGTH = 101, 17
BERT = {
    "vocab_size": VOCABULARY,
    "hidden_size": 21,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 29,
    "max_position_embeddings": 23,
}
GPT = {"vocab_size": VOCABULARY, "n_embd": 21, "n_layer": 2, "n_head": 3, "n_positions": 23}
NEO = {
    "vocab_size": VOCABULARY,
    "hidden_size": 21,
    "num_layers": 2,
    "num_heads": 3,
    "attention_types": [[["global", "local"], 1]],
    "window_size": 5,
}
OPT = {
    "vocab_size": VOCABULARY,
    "hidden_size": 21,
    "word_embed_proj_dim": 11,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "ffn_dim": 29,
}
LLAMA = {
    "vocab_size": VOCABULARY,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "intermediate_size": 29,
}
CAUSAL = {
    "gpt1": ("OpenAIGPTLMHeadModel", GPT),
    "gpt2": ("GPT2LMHeadModel", GPT),
    "gpt-neo": ("GPTNeoForCausalLM", NEO),
    "opt": ("OPTForCausalLM", OPT),
    "llama": ("LlamaForCausalLM", LLAMA),
    "llama-tied": ("LlamaForCausalLM", {**LLAMA, "tie_word_embeddings": True}),
    "mistral": ("MistralForCausalLM", {**LLAMA, "sliding_window": 5}),
}


MASKED = {
    "roberta": ("RobertaForMaskedLM", BERT),
    "albert": ("AlbertForMaskedLM", {**BERT, "embedding_size": 13}),
    "electra": ("ElectraForMaskedLM", {**BERT, "embedding_size": 13}),
    "modernbert": (
        "ModernBertForMaskedLM",
        {**BERT, "hidden_size": 24, "local_attention": 6, "pad_token_id": 0},
    ),
}
T5 = {
    "vocab_size": VOCABULARY,
    "d_model": 21,
    "d_kv": 7,
    "d_ff": 29,
    "num_layers": 2,
    "num_heads": 3,
}
BART = {
    "vocab_size": VOCABULARY,
    "d_model": 22,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 29,
    "decoder_ffn_dim": 29,
    "max_position_embeddings": 23,
}
TRANSLATION = {
    "t5": ("T5ForConditionalGeneration", T5),
    "bart": ("BartForConditionalGeneration", BART),
    "marian": ("MarianMTModel", {**BART, "pad_token_id": 0, "decoder_start_token_id": 0}),
}


def theirs_of(name, options):
    """Theirs without any dropout: a mode that trains, and the same numbers every time."""
    hf_class = getattr(transformers, name)
    return randomize(hf_class(hf_class.config_class(**options)), seed=1).eval()


def random_ids() -> torch.Tensor:
    """None of them padding, whose vector theirs do not train."""
    return torch.randint(2, VOCABULARY, (3, LENGTH))


def labelled(labels, **inputs):
    """Labels [B, T] with -100 where there is no loss, as the loop hands them to a model."""
    flat = labels.flatten()
    positions = (flat != -100).nonzero()[:, 0]
    return TensorBatch(inputs, positions, flat[positions])


@pytest.mark.parametrize("name", CAUSAL)
def test_causal(name):
    theirs = theirs_of(*CAUSAL[name])
    ours, ids = ours_of(theirs), random_ids()
    given = torch.where(torch.rand(ids.shape) < 0.2, -100, ids)
    expected = theirs(ids, labels=given).loss
    expected.backward()

    shifted = torch.full_like(given, -100)
    shifted[:, :-1] = given[:, 1:]
    loss = token_loss(ours, labelled(shifted, input_ids=ids))
    (loss.sum / loss.count).backward()
    assert loss.sum.item() / loss.count == pytest.approx(expected.item(), rel=1e-5)
    compare_gradients(theirs, ours)


@pytest.mark.parametrize("plain", [True, False])
def test_masked_and_next_sentence(plain):
    theirs = theirs_of("BertForPreTraining", BERT)
    ours, ids = ours_of(theirs), random_ids()
    mask = torch.arange(LENGTH) < torch.tensor([[17], [13], [7]])
    inputs = {"token_type_ids": torch.randint(2, ids.shape), "attention_mask": mask.long()}
    if plain:
        inputs = {}
    labels = torch.where((torch.rand(ids.shape) < 0.3) & mask, ids, -100)
    relation = torch.tensor([1, 0, 1])
    expected = theirs(ids, labels=labels, next_sentence_label=relation, **inputs).loss
    expected.backward()

    loss = token_loss(ours, labelled(labels, input_ids=ids, **inputs))
    nsp = ours.logits(ours(ids, **inputs), head="nsp")
    total = loss.sum / loss.count + torch.nn.functional.cross_entropy(nsp, relation)
    total.backward()
    assert total.item() == pytest.approx(expected.item(), rel=1e-5)
    compare_gradients(theirs, ours)


@pytest.mark.parametrize("name", MASKED)
def test_masked(name):
    theirs = theirs_of(*MASKED[name])
    ours, ids = ours_of(theirs), random_ids()
    mask = torch.arange(LENGTH) < torch.tensor([[17], [13], [7]])
    labels = torch.where((torch.rand(ids.shape) < 0.3) & mask, ids, -100)
    expected = theirs(ids, labels=labels, attention_mask=mask.long()).loss
    expected.backward()

    loss = token_loss(ours, labelled(labels, input_ids=ids, attention_mask=mask.long()))
    (loss.sum / loss.count).backward()
    assert loss.sum.item() / loss.count == pytest.approx(expected.item(), rel=1e-5)
    compare_gradients(theirs, ours)


@pytest.mark.parametrize("name", TRANSLATION)
def test_translation(name):
    theirs = theirs_of(*TRANSLATION[name])
    ours, ids, targets = ours_of(theirs), random_ids(), torch.randint(2, VOCABULARY, (3, 13))
    mask = (torch.arange(LENGTH) < torch.tensor([[17], [13], [7]])).long()
    labels = torch.where(torch.rand(targets.shape) < 0.2, -100, targets)
    pairs = {"attention_mask": mask, "decoder_input_ids": targets.roll(1, 1)}
    expected = theirs(ids, labels=labels, **pairs).loss
    expected.backward()

    loss = token_loss(ours, labelled(labels, input_ids=ids, **pairs))
    (loss.sum / loss.count).backward()
    assert loss.sum.item() / loss.count == pytest.approx(expected.item(), rel=1e-5)
    compare_gradients(theirs, ours)
