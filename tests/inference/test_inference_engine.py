"""The engine: every text comes out as it would alone and without a cache."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from small_models import BOTH, SPECS, VOCABULARY, random_ids, small_model

from trivium import spec
from trivium.errors import SpecError, TriviumError
from trivium.inference import Sampling, decoding
from trivium.inference import engine as engine_module
from trivium.inference.choices import Choices
from trivium.inference.drafts import DraftModel, PromptLookup
from trivium.inference.engine import Engine
from trivium.inference.request import Request
from trivium.models import build, transformer
from trivium.nn import attention
from trivium.nn.cache import MOST_SHORTENED
from trivium.presets import presets

DECODERS = [name for name, described in SPECS.items() if described.decoder is not None]
SEQUENCES = {
    "lstm": presets["lstm-tiny"].replace(vocab_size=VOCABULARY, d_model=11, d_hidden=13),
    "ngram": presets["ngram-tiny"].replace(vocab_size=VOCABULARY, d_model=11, order=5),
}
LENGTHS = (5, 1, 13, 12, 2, 7, 11)
GREEDY, SAMPLED = Sampling(0.0), Sampling(1.3, top_k=17, top_p=0.9)
START = (3,)


@pytest.fixture(scope="module", params=[*DECODERS, *SEQUENCES])
def model(request):
    return made(request.param)


def made(name: str):
    """A model in evaluation mode whose texts vary."""
    if name in SEQUENCES:
        found = build(SEQUENCES[name], seed=5)
        with torch.no_grad():
            for weight in found.parameters():
                weight.mul_(4.0)
        return found.eval()
    return small_model(name, seed=3).eval()


def start_of(model) -> tuple[int, ...]:
    return START if model.spec.family == "encoder-decoder" else ()


def prompts_of(model) -> list[list[int]]:
    limit = getattr(model.spec, "source_vocab_size", None) or VOCABULARY
    ids = random_ids(len(LENGTHS), max(LENGTHS), seed=7) % limit
    return [row[:length] for row, length in zip(ids.tolist(), LENGTHS)]


def requests_of(model, sampling=GREEDY, tokens=9) -> list[Request]:
    return [
        Request(prompt=prompt, max_new_tokens=tokens + 3 * (i % 3), sampling=sampling, seed=i)
        for i, prompt in enumerate(prompts_of(model))
    ]


def written(model, requests, *, rows=3, **options) -> list[list[int]]:
    engine = Engine(model, rows=rows, decoder_start=start_of(model), **options)
    texts = [engine.add(request) for request in requests]
    for _ in engine.run():
        assert engine.running <= rows
    assert all(text.finish in ("stop", "length") for text in texts)
    return [text.ids for text in texts]


@torch.no_grad()
def uncached(model, request: Request) -> list[int]:
    """Greedy, by a forward pass over all of the text for every token."""
    ids, prompt = [], list(request.prompt)
    for _ in range(request.max_new_tokens):
        if start_of(model):
            hidden = model(torch.tensor([prompt]), decoder_input_ids=torch.tensor([[*START, *ids]]))
        else:
            hidden = model(torch.tensor([[*prompt, *ids]]))
        ids.append(int(model.logits(hidden[0, -1]).argmax()))
    return ids


@pytest.mark.parametrize("rows", [1, 3, 8])
def test_greedy_equals_a_model_without_a_cache(model, rows):
    requests = requests_of(model)
    expected = [uncached(model, request) for request in requests]
    assert written(model, requests, rows=rows) == expected
    assert len({index for ids in expected for index in ids}) >= 3


@pytest.mark.parametrize("name", DECODERS)
def test_rows_one_by_one_or_together_behind_a_mask(name, monkeypatch):
    """A CPU chooses by the size of keys; on a GPU one kernel looks at the keys of all rows."""
    model = made(name)
    requests = requests_of(model)
    expected = written(model, requests)
    monkeypatch.setattr(attention, "_CALL", 0)
    assert written(model, requests) == expected
    for module in (attention, transformer, decoding):
        monkeypatch.setattr(module, "texts_apart", lambda device: False)
    assert written(model, requests) == expected
    assert written(model, requests, draft=PromptLookup()) == expected


@pytest.mark.parametrize("room", [1, 9, 1000])
def test_prompts_in_a_row_are_read_as_if_alone(room, monkeypatch):
    """One behind another, as many as there is room for; longer ones by themselves."""
    model = made("llama")
    requests = requests_of(model)
    expected = [uncached(model, request) for request in requests]
    monkeypatch.setattr(engine_module, "_ROW", room)
    firsts, forward = [], model.forward

    def hear(ids, **rest):
        if "document_ids" in rest:
            firsts.append(ids.shape[1])
        return forward(ids, **rest)

    monkeypatch.setattr(model, "forward", hear)
    assert written(model, requests, rows=8) == expected
    lengths = [len(request.prompt) for request in requests]
    assert sum(firsts) == sum(lengths)
    assert max(firsts) <= max(room, *lengths)
    assert (len(firsts) == 1) == (room == 1000)


def test_texts_in_a_row_may_be_longer_than_the_positions():
    model = made("gpt2")
    longest = model.spec.max_length
    prompts = [[1 + i] * (longest - 2) for i in range(3)]
    requests = [Request(prompt=prompt, max_new_tokens=2, sampling=GREEDY) for prompt in prompts]
    assert written(model, requests) == [uncached(model, request) for request in requests]


def test_a_sampled_text_depends_on_its_seed_alone(model):
    requests = requests_of(model, SAMPLED)
    alone = [written(model, [request])[0] for request in requests]
    assert written(model, requests, rows=4) == alone
    assert written(model, requests[::-1], rows=2)[::-1] == alone
    again = Request(prompt=requests[0].prompt, max_new_tokens=9, sampling=SAMPLED, seed=99)
    assert written(model, [again])[0] != alone[0]


def test_texts_join_and_leave_as_they_like(model):
    """Three begin, one is cancelled in the middle, the others come later."""
    requests = requests_of(model, tokens=11)
    expected = [uncached(model, request) for request in requests]
    engine = Engine(model, rows=3, decoder_start=start_of(model))
    texts = [engine.add(request) for request in requests[:3]]
    for _ in range(4):
        engine.step()
    engine.cancel(texts[0])
    assert (engine.running, texts[0].finish) == (2, "cancelled")
    texts += [engine.add(request) for request in requests[3:]]
    engine.cancel(texts[-1])
    assert (engine.running, engine.waiting) == (2, len(requests) - 4)
    for _ in engine.run():
        pass
    assert texts[0].ids == expected[0][:4]
    assert [text.ids for text in texts[1:-1]] == expected[1:-1]
    assert texts[-1].ids == []


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED, Sampling(0.0, repetition_penalty=1.3)])
@pytest.mark.parametrize("name", DECODERS)
def test_guesses_change_nothing(name, sampling):
    model = made(name)
    requests, wrong = requests_of(model, sampling, tokens=14), _Wrong()
    expected = written(model, requests)
    assert written(model, requests, draft=PromptLookup(most=5)) == expected
    assert written(model, requests, draft=wrong) == expected
    if model.spec.family == "decoder-only":
        assert written(model, requests, draft=DraftModel(model, most=3)) == expected
        other = made("llama" if name != "llama" else "gpt2")
        assert written(model, requests, draft=DraftModel(other)) == expected
    assert wrong.texts == 0


class _Wrong:
    """Guesses that are mostly wrong, a different number for every text."""

    most, texts = 6, 0

    def guess(self, texts, most):
        self.texts = len(texts)
        return [
            [text.ids[-1] + i & 31 for i in range((text.request.seed * 3) % most)] for text in texts
        ]

    def forget(self, text):
        self.texts -= 1


def test_a_model_that_guesses_for_itself_needs_few_steps():
    model = made("llama")
    engine = Engine(model, rows=1, draft=DraftModel(model, most=4))
    text = engine.add(Request(prompt=[5, 7, 11], max_new_tokens=16, sampling=GREEDY))
    assert [len(text.ids) for _ in engine.run()] == [1, 6, 11, 16]


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED, Sampling(0.0, repetition_penalty=1.3)])
def test_reading_ids_a_step_later_changes_nothing(model, sampling):
    """As on a GPU, which is given its next step before the ids of the last one are read."""
    requests = requests_of(model, sampling)
    requests[3] = replace(requests[3], top_scores=2)  # it needs its ids at once
    expected = written(model, requests)
    assert written(model, requests, ahead=True) == expected
    end = expected[0][4]
    cut = written(model, requests, stop_ids=[end])
    assert cut != expected
    assert written(model, requests, stop_ids=[end], ahead=True) == cut


def test_a_step_ahead_and_texts_that_come_and_go(model):
    requests = requests_of(model, tokens=11)
    expected = written(model, requests)
    engine = Engine(model, rows=3, decoder_start=start_of(model), ahead=True)
    texts = [engine.add(request) for request in requests[:3]]
    assert [len(engine.step()) for _ in range(4)] == [3, 0, 3, 3]
    engine.cancel(texts[0])
    texts += [engine.add(request) for request in requests[3:]]
    for changed in engine.run():
        assert texts[0] not in changed
    assert texts[0].ids == expected[0][:3]
    assert [text.ids for text in texts[1:]] == expected[1:]
    assert not engine.busy
    again = engine.add(requests[0])
    assert [len(changed) for changed in engine.run()] == [1, 0, *[1] * 10]
    assert again.ids == expected[0]


@pytest.mark.parametrize("name", SEQUENCES)
def test_states_cannot_go_back_so_that_guesses_are_not_asked_for(name):
    model = made(name)
    requests = requests_of(model)
    assert written(model, requests, draft=PromptLookup()) == written(model, requests)
    with pytest.raises(SpecError, match="Transformer"):
        DraftModel(model)


def test_stop_ids_end_a_text_and_are_no_part_of_it(model):
    requests = requests_of(model)
    free = written(model, requests)
    end = free[0][4]
    cut = [ids[: ids.index(end)] if end in ids else ids for ids in free]
    assert written(model, requests, stop_ids=[end]) == cut
    assert written(model, requests, stop_ids=[end], draft=PromptLookup()) == cut


@pytest.mark.parametrize("window", [1, 3, 40])
@pytest.mark.parametrize("positions", [spec.Rotary(), spec.ALiBi(), spec.RelativeBias()])
def test_sliding_windows_forget_and_stay_the_same(window, positions):
    """Texts several times as long as what a window's cache has room for."""
    long = 2 * (window + MOST_SHORTENED) + 9
    sliding = spec.Attention(
        num_heads=2, head_dim=8, positions=positions, pattern=spec.Sliding(window=window)
    )
    block = SPECS["llama"].decoder
    assert block is not None
    described = SPECS["llama"].replace(decoder=block.replace(attention=(sliding,)))
    model = build(described, seed=3).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(3.0)
    ids = random_ids(3, long, seed=1).tolist()
    requests = [
        Request(prompt=ids[0], max_new_tokens=7, sampling=GREEDY),
        Request(prompt=ids[1][:2], max_new_tokens=long, sampling=GREEDY),
        Request(prompt=ids[2][: long - 5], max_new_tokens=long, sampling=GREEDY),
    ]
    expected = [uncached(model, request) for request in requests]
    engine = Engine(model, rows=2)
    texts = [engine.add(request) for request in requests]
    for _ in engine.run():
        room = engine._cache.layers[0].keys.shape[2]
        assert room <= 2 * (window + MOST_SHORTENED)
    assert [text.ids for text in texts] == expected
    assert written(model, requests, rows=3, draft=PromptLookup()) == expected


def test_log_probabilities_are_those_of_the_model():
    model = made("llama")
    request = Request(prompt=[5, 7, 11], max_new_tokens=6, sampling=SAMPLED, top_scores=4)
    engine = Engine(model, rows=2)
    engine.add(Request(prompt=[3], max_new_tokens=9))
    text = engine.add(request)
    for _ in engine.run():
        pass
    with torch.no_grad():
        hidden = model(torch.tensor([[5, 7, 11, *text.ids]]))[0, 2:-1]
        expected = model.logits(hidden).double().log_softmax(-1)
    assert [score.id for score in text.scores] == text.ids
    for score, row in zip(text.scores, expected, strict=True):
        assert score.log_probability == pytest.approx(float(row[score.id]), abs=1e-4)
        best = row.topk(4)
        assert [index for index, _ in score.top] == best.indices.tolist()
        assert [value for _, value in score.top] == pytest.approx(best.values.tolist(), abs=1e-4)


def test_scores_do_not_count_the_end():
    model = made("llama")
    free = written(model, [Request(prompt=[5, 7], max_new_tokens=6, sampling=GREEDY)])[0]
    end = next(index for place, index in enumerate(free) if place and index not in free[:place])
    engine = Engine(model, stop_ids=[end])
    text = engine.add(Request(prompt=[5, 7], max_new_tokens=6, sampling=GREEDY, top_scores=0))
    for _ in engine.run():
        pass
    assert text.ids == free[: free.index(end)]
    assert [score.id for score in text.scores] == text.ids
    assert text.scores[0].top == ()


def penalised(model, sampling: Sampling, prompt: list[int], count: int) -> list[int]:
    """Greedy with presence and frequency penalties and biases, by the formula, in a loop."""
    ids: list[int] = []
    for _ in range(count):
        with torch.no_grad():
            logits = model.logits(model(torch.tensor([[*prompt, *ids]]))[0, -1]).tolist()
        for index, bias in sampling.logit_bias:
            logits[index] += bias
        for index in set(ids):
            logits[index] -= sampling.presence_penalty
            logits[index] -= sampling.frequency_penalty * ids.count(index)
        ids.append(max(range(len(logits)), key=logits.__getitem__))
    return ids


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(0.0, presence_penalty=1.5),
        Sampling(0.0, frequency_penalty=0.8),
        Sampling(0.0, presence_penalty=-1.1, frequency_penalty=0.7),
        Sampling(0.0, logit_bias=((7, 3.0), (11, -100.0))),
    ],
)
def test_penalties_and_biases_by_their_formula(sampling):
    model = made("gpt2")
    requests = [
        Request(prompt=[3, 5, 7], max_new_tokens=19, sampling=sampling),
        Request(prompt=[3], max_new_tokens=19, sampling=GREEDY),
        Request(prompt=[2, 3], max_new_tokens=17, sampling=sampling),
    ]
    expected = [penalised(model, r.sampling, list(r.prompt), r.max_new_tokens) for r in requests]
    assert written(model, requests) == expected
    assert expected[0] != penalised(model, GREEDY, [3, 5, 7], 19)


def test_only_choices_are_written():
    model = made("gpt2")
    options, end = [[5, 6, 7], [5, 6], [8], [9, 9, 9, 9]], 2
    choices = Choices(options, [end])
    requests = [
        Request(prompt=[3 + seed], sampling=Sampling(3.0), seed=seed, choices=choices)
        for seed in range(40)
    ]
    engine = Engine(model, rows=7, stop_ids=[end])
    texts = [engine.add(request) for request in requests]
    for _ in engine.run():
        pass
    assert {text.finish for text in texts} == {"stop"}
    found = {tuple(text.ids) for text in texts}
    assert found == {tuple(option) for option in options}
    with pytest.raises(TriviumError, match="beginning of another"):
        Choices(options, [])
    with pytest.raises(TriviumError, match="none of them empty"):
        Choices([[1], []], [])


def test_positions_end_a_text_alone():
    """The others go on: only the one that has no positions left ends."""
    model = made("gpt2")
    limit = model.spec.max_length
    assert limit is not None
    requests = [
        Request(prompt=[3] * (limit - 2), max_new_tokens=30, sampling=GREEDY),
        Request(prompt=[5], max_new_tokens=30, sampling=GREEDY),
    ]
    for draft in (None, PromptLookup(most=7)):
        found = written(model, requests, draft=draft)
        assert [len(ids) for ids in found] == [3, 30]


def test_what_cannot_be_done_is_refused_when_it_is_asked():
    model = made("gpt2")
    engine = Engine(model)
    with pytest.raises(SpecError, match=r"38 tokens.*end at 37"):
        engine.add(Request(prompt=[3] * 38))
    with pytest.raises(SpecError, match="no tokens"):
        engine.add(Request(prompt=[]))
    with pytest.raises(TriviumError, match="max_new_tokens is 0"):
        engine.add(Request(prompt=[3], max_new_tokens=0))
    with pytest.raises(SpecError, match=f"id 99, but ids end at {VOCABULARY}"):
        engine.add(Request(prompt=[3], sampling=Sampling(logit_bias=((99, 1.0),))))
    with pytest.raises(TriviumError, match="rows is 0"):
        Engine(model, rows=0)
    assert not engine.busy


def test_encoder_decoders_read_sources_of_any_length():
    """Their memories stand side by side, padded; what is padded is not looked at."""
    for name in BOTH:
        model = made(name)
        requests = requests_of(model)
        expected = [uncached(model, request) for request in requests]
        for order in (slice(None), slice(None, None, -1)):
            assert written(model, requests[order], rows=2)[order] == expected
