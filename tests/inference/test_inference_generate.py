"""Generation against `transformers`, and properties of the cache and of padded batches."""

from __future__ import annotations

import pytest
import torch
from hugging_face import ours_of
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from trivium.errors import SpecError, TriviumError
from trivium.inference import Sampling, generate_ids
from trivium.models import build
from trivium.presets import presets
from trivium.spec import Attention, Rotary, Sliding

VOCAB, POSITIONS = 101, 61
PROMPTS = [[7, 3, 11, 2, 5], [13], [17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59]]
GREEDY = Sampling(0.0)


def hf_gpt2() -> GPT2LMHeadModel:
    config = GPT2Config(vocab_size=VOCAB, n_positions=POSITIONS, n_embd=24, n_layer=3, n_head=3)
    config.initializer_range = 0.4
    return GPT2LMHeadModel(config).eval()


def hf_llama() -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=24,
        intermediate_size=37,
        num_hidden_layers=3,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=4,
        initializer_range=0.4,
        tie_word_embeddings=False,
    )
    return LlamaForCausalLM(config).eval()


@pytest.fixture(params=["gpt2", "llama"])
def pair(request):
    theirs = hf_gpt2() if request.param == "gpt2" else hf_llama()
    return theirs, ours_of(theirs)


def ours(model, prompts, **changes) -> list[list[int]]:
    settings = {"max_new_tokens": 23, "sampling": GREEDY, **changes}
    texts: list[list[int]] = [[] for _ in prompts]
    for step in generate_ids(model, prompts, **settings):
        for text, index in zip(texts, step, strict=True):
            text.extend([] if index is None else [index])
    return texts


def theirs(model, prompts, *, eos=None, penalty=1.0) -> list[list[int]]:
    longest = max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(p)) + p for p in prompts])
    mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts])
    out = model.generate(
        ids,
        attention_mask=mask,
        max_new_tokens=23,
        do_sample=False,
        eos_token_id=eos,
        pad_token_id=0,
        repetition_penalty=penalty,
    )
    return out[:, longest:].tolist()


def test_greedy_equals_transformers_alone_and_batched(pair):
    hf, model = pair
    alone = [theirs(hf, [prompt])[0] for prompt in PROMPTS]
    assert len({tuple(text) for text in alone}) == len(PROMPTS)
    assert max(len(set(text)) for text in alone) > 5  # not one token for ever
    assert [ours(model, [prompt])[0] for prompt in PROMPTS] == alone
    assert ours(model, PROMPTS) == alone
    assert theirs(hf, PROMPTS) == alone


def test_repetition_penalty_equals_transformers(pair):
    hf, model = pair
    for prompt in PROMPTS:
        assert ours(model, [prompt], sampling=Sampling(0.0, repetition_penalty=1.7)) == theirs(
            hf, [prompt], penalty=1.7
        )
    batched = ours(model, PROMPTS, sampling=Sampling(0.0, repetition_penalty=1.7))
    assert batched == [theirs(hf, [prompt], penalty=1.7)[0] for prompt in PROMPTS]


def test_stops_before_the_end_of_text(pair):
    hf, model = pair
    free = ours(model, PROMPTS)
    eos = free[0][4]
    cut = [text[: text.index(eos)] if eos in text else text for text in free]
    assert ours(model, PROMPTS, stop_ids=[eos]) == cut
    assert len(cut[0]) < len(free[0])
    with_eos = theirs(hf, PROMPTS[:1], eos=eos)[0]
    assert with_eos[: with_eos.index(eos)] == cut[0]


def test_cached_equals_uncached(pair):
    model = pair[1]
    text = list(PROMPTS[0])
    for (index,) in generate_ids(model, [text], max_new_tokens=17, sampling=GREEDY):
        with torch.no_grad():
            hidden = model(torch.tensor([text]))
            best = model.logits(hidden[0, -1]).argmax()
        assert index == int(best)
        text = [*text, index]


def test_sampled_batch_equals_one_by_one(pair):
    model = pair[1]
    settings = {"sampling": Sampling(0.9, top_k=31, top_p=0.95)}
    batched = ours(model, PROMPTS, seeds=[5, 6, 7], **settings)
    alone = [ours(model, [p], seeds=[5 + i], **settings)[0] for i, p in enumerate(PROMPTS)]
    assert batched == alone
    assert ours(model, PROMPTS[:1], seeds=[8], **settings)[0] != batched[0]


def test_sliding_window_batched_equals_one_by_one():
    attention = Attention(num_heads=2, head_dim=8, positions=Rotary(), pattern=Sliding(window=3))
    spec = presets["llama-tiny"].replace(vocab_size=VOCAB)
    assert spec.decoder is not None
    model = build(spec.replace(decoder=spec.decoder.replace(attention=attention))).eval()
    assert ours(model, PROMPTS) == [ours(model, [prompt])[0] for prompt in PROMPTS]


def test_padded_vocabulary_rows_are_never_chosen(pair):
    model = pair[1]
    free = ours(model, PROMPTS, sampling=Sampling(5.0))
    assert max(map(max, free)) >= 50
    kept = ours(model, PROMPTS, sampling=Sampling(5.0), vocab_size=50)
    # Prompts hold ids from 50 on; only what is new is limited.
    assert max(map(max, kept)) < 50


def test_ends_where_positions_end():
    model = ours_of(hf_gpt2())
    prompt = [3] * (POSITIONS - 4)
    assert len(ours(model, [prompt], max_new_tokens=5)[0]) == 5
    # The last token is fed no more: it needs no position of its own.
    assert len(ours(model, [prompt], max_new_tokens=1000)[0]) == 5
    assert len(ours(model, [[3] * POSITIONS], max_new_tokens=9)[0]) == 1


def test_refuses_before_any_work():
    model = ours_of(hf_gpt2())
    with pytest.raises(SpecError, match=rf"{POSITIONS + 1} tokens.*end at {POSITIONS}"):
        generate_ids(model, [[3] * (POSITIONS + 1)], max_new_tokens=1, sampling=GREEDY)
    with pytest.raises(SpecError, match="no tokens"):
        generate_ids(model, [[3], []], max_new_tokens=1, sampling=GREEDY)
    with pytest.raises(TriviumError, match="max_new_tokens is 0"):
        generate_ids(model, [[3]], max_new_tokens=0, sampling=GREEDY)
    assert ours(model, []) == []
