"""Generation with an encoder and a decoder against `transformers`, and what it costs."""

from __future__ import annotations

import pytest
import torch
from hugging_face import ours_of
from lively_models import POSITIONS, THEIRS, VOCAB, lively
from small_models import small_model
from translation import START, generate_theirs

from trivium.errors import SpecError
from trivium.inference import Sampling, generate_ids
from trivium.models.transformer import Memory

NEW = 23
SOURCES = [[7, 3, 11, 5], [13], [17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59]]
GREEDY = Sampling(0.0)


@pytest.fixture(params=THEIRS, scope="module")
def pair(request):
    theirs = lively(request.param)
    return theirs, ours_of(theirs)


@pytest.fixture(scope="module")
def bart():
    return ours_of(lively("bart"))


def ours(model, sources, *, start=(START,), **changes) -> list[list[int]]:
    settings = {"max_new_tokens": NEW, "sampling": GREEDY, "decoder_start": start, **changes}
    texts: list[list[int]] = [[] for _ in sources]
    for step in generate_ids(model, sources, **settings):
        for text, index in zip(texts, step, strict=True):
            text.extend([] if index is None else [index])
    return texts


def theirs(hf, sources, *, start=(START,), **changes) -> list[list[int]]:
    return generate_theirs(hf, sources, start=start, max_new_tokens=NEW, **changes)


def test_greedy_equals_transformers_alone_and_batched(pair):
    hf, model = pair
    alone = [theirs(hf, [source])[0] for source in SOURCES]
    assert len({tuple(text) for text in alone}) == len(SOURCES)  # the source decides
    assert max(len(set(text)) for text in alone) > 1
    assert [ours(model, [source])[0] for source in SOURCES] == alone
    assert ours(model, SOURCES) == alone
    assert theirs(hf, SOURCES) == alone


def test_a_longer_start_and_a_repetition_penalty_equal_transformers(pair):
    hf, model = pair
    start = (START, 5, 9)
    for penalty in (1.0, 1.7):
        sampling = Sampling(0.0, repetition_penalty=penalty)
        expected = theirs(hf, SOURCES, start=start, penalty=penalty)
        assert ours(model, SOURCES, start=start, sampling=sampling) == expected
    assert max(len(set(text)) for text in expected) > 5
    assert expected != theirs(hf, SOURCES, penalty=1.7)


def test_stops_before_the_end_of_text(pair):
    hf, model = pair
    free = ours(model, SOURCES)
    end = free[2][3]
    cut = [text[: text.index(end)] if end in text else text for text in free]
    assert ours(model, SOURCES, stop_ids=[end]) == cut
    assert len(cut[2]) < len(free[2])
    with_end = theirs(hf, SOURCES[2:], end=end)[0]
    assert with_end[: with_end.index(end)] == cut[2]


def test_cached_equals_uncached(pair):
    model, source = pair[1], torch.tensor(SOURCES[:1])
    text = [START]
    for (index,) in generate_ids(
        model, SOURCES[:1], max_new_tokens=13, sampling=GREEDY, decoder_start=[START]
    ):
        with torch.no_grad():
            hidden = model(source, decoder_input_ids=torch.tensor([text]))
            assert index == int(model.logits(hidden[0, -1]).argmax())
        text.append(index)
    assert len(text) == 14


def test_cached_logits_equal_uncached_ones_in_a_padded_batch(pair):
    model, rows, length = pair[1], len(SOURCES), 13
    lengths = torch.tensor([len(source) for source in SOURCES])
    ids = torch.tensor([[*s, *[0] * (11 - len(s))] for s in SOURCES])
    real = torch.arange(11) < lengths[:, None]
    targets = torch.randint(3, VOCAB, (rows, length), generator=torch.Generator().manual_seed(3))
    cache = model.new_cache(rows, length)
    with torch.no_grad():
        expected = model(ids, attention_mask=real, decoder_input_ids=targets)
        memory = Memory(model.encode(ids, attention_mask=real), real)
        steps = [
            model.decode(piece, memory=memory, cache=cache) for piece in targets.split([5, 1, 7], 1)
        ]
        chosen = torch.tensor([2, 0, 2])
        cache.reorder(chosen)  # the cache has the memory too: what is given no longer matters
        kept = Memory(memory.hidden * 0, real[chosen])
        cache.length = 5
        again = model.decode(targets[chosen, 5:], memory=kept, cache=cache)
    torch.testing.assert_close(torch.cat(steps, 1), expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(again, expected[chosen, 5:], rtol=1e-4, atol=1e-4)


def test_sampled_batch_equals_one_by_one(pair):
    model = pair[1]
    settings = {"sampling": Sampling(0.9, top_k=31, top_p=0.95)}
    batched = ours(model, SOURCES, seeds=[5, 6, 7], **settings)
    alone = [ours(model, [s], seeds=[5 + i], **settings)[0] for i, s in enumerate(SOURCES)]
    assert batched == alone


def test_the_encoder_runs_once_and_its_keys_are_made_once(bart):
    calls = {"encoder": 0, "keys": 0, "decoder": 0}

    def count(name):
        def hook(*_):
            calls[name] += 1

        return hook

    handles = [
        bart.encoder.register_forward_hook(count("encoder")),
        bart.decoder.register_forward_hook(count("decoder")),
        *(b.cross_attention.key.register_forward_hook(count("keys")) for b in bart.decoder.layers),
    ]
    ours(bart, SOURCES)
    for handle in handles:
        handle.remove()
    assert calls == {"encoder": 1, "keys": len(bart.decoder.layers), "decoder": NEW}


def test_padded_vocabulary_rows_are_never_chosen(bart):
    hot = Sampling(5.0)
    assert max(map(max, ours(bart, SOURCES, sampling=hot))) >= 50
    assert max(map(max, ours(bart, SOURCES, sampling=hot, vocab_size=50))) < 50


def test_ends_where_positions_end(bart):
    assert len(ours(bart, SOURCES, max_new_tokens=1000)[0]) == POSITIONS
    start = [START] * (POSITIONS - 4)
    assert len(ours(bart, SOURCES, start=start, max_new_tokens=1000)[0]) == 5


def test_refuses_before_any_work(bart):
    settings = {"max_new_tokens": 1, "sampling": GREEDY}
    with pytest.raises(SpecError, match="decoder_start"):
        generate_ids(bart, SOURCES, **settings)
    with pytest.raises(SpecError, match=rf"{POSITIONS + 1} tokens.*end at {POSITIONS}"):
        generate_ids(bart, [[3] * (POSITIONS + 1)], decoder_start=[START], **settings)
    with pytest.raises(SpecError, match=rf"{POSITIONS + 1} tokens.*end at {POSITIONS}"):
        generate_ids(bart, SOURCES, decoder_start=[START] * (POSITIONS + 1), **settings)
    with pytest.raises(SpecError, match="no tokens"):
        generate_ids(bart, [[3], []], decoder_start=[START], **settings)
    assert ours(bart, []) == []


def test_a_decoder_alone_has_no_start():
    with pytest.raises(SpecError, match=r"decoder-only.*decoder_start"):
        generate_ids(
            small_model("gpt2"), [[3]], max_new_tokens=1, sampling=GREEDY, decoder_start=[START]
        )


def test_banned_ids_are_never_chosen():
    """Marian's padding is the best guess of its bare weights and is forbidden by its settings."""
    model = small_model("marian")
    sampling = Sampling(temperature=0.0)

    def best(banned: tuple[int, ...]) -> list[int | None]:
        steps = generate_ids(
            model,
            [[5, 7, 11]],
            max_new_tokens=6,
            sampling=sampling,
            decoder_start=[2],
            banned_ids=banned,
        )
        return [row[0] for row in steps]

    free = best(())
    forbidden = tuple({index for index in free if index is not None})
    assert not set(best(forbidden)) & set(forbidden)
