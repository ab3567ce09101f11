"""Beam search against `transformers`, and what holds for it in any batch."""

from __future__ import annotations

import itertools

import pytest
import torch
from hugging_face import ours_of
from lively_models import POSITIONS, THEIRS, VOCAB, lively
from small_models import small_model
from their_beams import their_beams
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM
from translation import START

from trivium import spec
from trivium.errors import SpecError, TriviumError
from trivium.inference import Sampling, generate_ids
from trivium.inference.beam import Beams, Hypothesis, beam_search, decode_all
from trivium.inference.sampling import forbid_repetition, largest
from trivium.models import build

NEW = 9
PROMPTS = [[7, 3, 11, 5], [13], [17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59], [7, 9]]
# Every number of beams, penalty and way to end, and every way to end with every penalty.
GRID = [
    Beams(1),
    Beams(2, 0.0, early_stopping=True, num_return=2),
    Beams(2, 1.0, early_stopping=False, num_return=2),
    Beams(2, 0.6, early_stopping="never", num_return=1),
    Beams(4, 0.0, early_stopping=False, num_return=4),
    Beams(4, 0.6, early_stopping=True, num_return=3),
    Beams(4, 1.0, early_stopping="never", num_return=4),
    Beams(4, 2.0, early_stopping=False, num_return=4),
    Beams(4, -1.0, early_stopping="never", num_return=4),
    Beams(5, 2.0, early_stopping=True, num_return=5),
    Beams(5, 0.6, early_stopping=False, num_return=2),
    Beams(5, 0.0, early_stopping="never", num_return=5),
    Beams(5, 1.0, early_stopping=True, num_return=5),
]


def hf_gpt2() -> GPT2LMHeadModel:
    config = GPT2Config(vocab_size=VOCAB, n_positions=61, n_embd=24, n_layer=3, n_head=3)
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


DECODERS = {"gpt2": hf_gpt2, "llama": hf_llama}


@pytest.fixture(params=[*THEIRS, *DECODERS], scope="module")
def pair(request):
    """Theirs, ours, and what both write from: `decoder_start` and two ids that may end a text."""
    torch.manual_seed(0)
    theirs = DECODERS[request.param]() if request.param in DECODERS else lively(request.param)
    model = ours_of(theirs)
    start = {} if request.param in DECODERS else {"decoder_start": (START,)}
    return theirs, model, {**start, "max_new_tokens": NEW}, frequent_ids(model, start)


def frequent_ids(model, start) -> list[int]:
    """Two ids that several texts have after their first: texts of every length end there."""
    free = beam_search(model, PROMPTS, beams=Beams(4, num_return=4), max_new_tokens=NEW, **start)
    texts = [{*text.ids[1:]} for text in itertools.chain(*free)]
    ids = sorted({*itertools.chain(*texts)}, key=lambda i: (sum(i in t for t in texts), i))
    return [ids[-3], ids[-2]]


@pytest.fixture(scope="module")
def bart():
    return ours_of(lively("bart"))


def assert_same(ours, theirs, *, scores: bool = True) -> None:
    assert [[text.ids for text in texts] for texts in ours] == [
        [text.ids for text in texts] for texts in theirs
    ]
    if scores:
        mine = [text.score for text in itertools.chain(*ours)]
        other = [text.score for text in itertools.chain(*theirs)]
        assert mine == pytest.approx(other, rel=1e-4, abs=1e-4)


def test_hypotheses_and_scores_equal_transformers(pair):
    hf, model, settings, ends = pair
    lengths = set()
    for number, beams in enumerate(GRID):
        stops = (ends[:1], ends, [])[number % 3 if number > 3 else 0]
        found = beam_search(model, PROMPTS, beams=beams, stop_ids=stops, **settings)
        expected = their_beams(hf, PROMPTS, beams=beams, stop_ids=stops, **settings)
        assert_same(found, expected, scores=beams.num_beams > 1)
        lengths |= {len(text.ids) for texts in found for text in texts}
    assert NEW in lengths
    assert len(lengths) > 3


def test_a_batch_equals_one_by_one(pair):
    model, settings, ends = pair[1:]
    for beams in (Beams(1), Beams(3, num_return=3), Beams(4, 2.0, early_stopping=True)):
        alone = [
            beam_search(model, [prompt], beams=beams, stop_ids=ends, **settings)[0]
            for prompt in PROMPTS
        ]
        assert_same(beam_search(model, PROMPTS, beams=beams, stop_ids=ends, **settings), alone)
        for tokens in (1, 31, 4096):
            batched = decode_all(
                model,
                [*PROMPTS, PROMPTS[1]],
                beams=beams,
                batch_tokens=tokens,
                stop_ids=ends,
                **settings,
            )
            assert_same(batched, [*alone, alone[1]])


def test_one_beam_is_greedy(pair):
    model, settings, ends = pair[1:]
    texts: list[list[int]] = [[] for _ in PROMPTS]
    for step in generate_ids(model, PROMPTS, sampling=Sampling(0.0), stop_ids=ends, **settings):
        for text, index in zip(texts, step, strict=True):
            text.extend([] if index is None else [index])
    for early_stopping in (True, False, "never"):
        beams = Beams(1, early_stopping=early_stopping)
        found = beam_search(model, PROMPTS, beams=beams, stop_ids=ends, **settings)
        assert [list(text.ids) for (text,) in found] == texts


@pytest.mark.parametrize("penalty", [0.0, 1.0, 2.0])
def test_a_score_is_the_sum_of_log_p_over_the_length(pair, penalty):
    """From a forward pass without a cache over each text that was found."""
    model, settings, ends = pair[1:]
    beams = Beams(4, penalty, num_return=4)
    start = [*settings.get("decoder_start", ())]
    found = beam_search(model, PROMPTS, beams=beams, stop_ids=ends[:1], **settings)
    for prompt, texts in zip(PROMPTS, found, strict=True):
        for text in texts:
            ids = [*text.ids, *(ends[:1] if len(text.ids) < NEW else [])]
            with torch.no_grad():
                inputs = torch.tensor([[*(start or prompt), *ids[:-1]]])
                both = (torch.tensor([prompt]), inputs) if start else (inputs,)
                hidden = model(both[0], **({"decoder_input_ids": inputs} if start else {}))
                logits = model.logits(hidden[0, -len(ids) :]).double().log_softmax(-1)
            total = float(logits[torch.arange(len(ids)), ids].sum())
            assert text.score == pytest.approx(total / len(ids) ** penalty, rel=1e-4, abs=1e-4)


@pytest.mark.parametrize(
    "beams",
    [
        Beams(4, no_repeat_ngram=1, num_return=2),
        Beams(4, no_repeat_ngram=2, num_return=2),
        Beams(3, no_repeat_ngram=3, min_new_tokens=5, num_return=3),
        Beams(4, min_new_tokens=3, num_return=4),
        Beams(1, no_repeat_ngram=2, min_new_tokens=4),
    ],
)
def test_forbidden_repetitions_and_a_least_length_equal_transformers(pair, beams):
    """Prompts alone: padding counts as a token in theirs."""
    hf, model, settings, ends = pair
    plain = beam_search(model, PROMPTS, beams=Beams(beams.num_beams), stop_ids=ends, **settings)
    found = beam_search(model, PROMPTS, beams=beams, stop_ids=ends, **settings)
    expected = [
        their_beams(hf, [prompt], beams=beams, stop_ids=ends, **settings)[0] for prompt in PROMPTS
    ]
    assert_same(found, expected, scores=beams.num_beams > 1)
    assert found != plain
    assert min(len(text.ids) for texts in found for text in texts) >= beams.min_new_tokens


def test_padding_is_no_token_that_could_be_repeated():
    """Prompts are padded with 0, which one of three allowed ids is."""
    model, allowed = small_model("gpt2"), {0, 5, 6}
    banned = [i for i in range(model.spec.vocab_size) if i not in allowed]
    found = beam_search(
        model,
        [[7, 9, 11], [13]],
        beams=Beams(2, no_repeat_ngram=1),
        max_new_tokens=3,
        banned_ids=banned,
    )
    assert [{*text.ids} for (text,) in found] == [allowed, allowed]


def test_forced_and_banned_ids_equal_transformers(pair):
    hf, model, settings, ends = pair
    forced = {"forced_bos_id": 19} if "decoder_start" in settings else {}
    for beams in (Beams(1), Beams(4, 0.6, num_return=4), Beams(2, 2.0, early_stopping=True)):
        for changes in (
            {"forced_eos_id": ends[0]},
            forced,
            {**forced, "forced_eos_id": 23, "banned_ids": [ends[1], 5]},
        ):
            options = {**settings, **changes, "stop_ids": ends[:1]}
            found = beam_search(model, PROMPTS, beams=beams, **options)
            expected = their_beams(hf, PROMPTS, beams=beams, **options)
            assert_same(found, expected, scores=beams.num_beams > 1)
            if "banned_ids" in changes:
                texts = [text.ids for texts in found for text in texts]
                assert not any(ends[1] in ids or 5 in ids for ids in texts)
                full = NEW - ("forced_bos_id" in changes)
                assert all(ids[-1] == 23 for ids in texts if len(ids) == full)


def test_a_longer_start_equals_transformers(bart):
    hf, start = lively("bart"), (START, 5, 9)
    beams = Beams(4, 0.6, num_return=4)
    options = {"beams": beams, "decoder_start": start, "max_new_tokens": NEW, "stop_ids": [10]}
    assert_same(beam_search(bart, PROMPTS, **options), their_beams(hf, PROMPTS, **options))


def test_forced_end_of_generated_texts_equals_transformers(pair):
    """`generate_ids` and a greedy search of theirs."""
    hf, model, settings, _ = pair
    for stops, forced in (([23], 23), ([], 29)):
        steps = generate_ids(
            model,
            PROMPTS,
            sampling=Sampling(0.0),
            stop_ids=stops,
            forced_eos_id=forced,
            **settings,
        )
        rows = [[i for i in row if i is not None] for row in zip(*steps, strict=True)]
        expected = their_beams(
            hf, PROMPTS, beams=Beams(1), stop_ids=stops, forced_eos_id=forced, **settings
        )
        assert [tuple(row) for row in rows] == [text.ids for (text,) in expected]


def test_enough_beams_find_the_best_of_all_texts():
    """Against all texts of three tokens or an earlier end, each scored by itself."""
    model, end, penalty = small_model("t5"), 7, 0.6
    source = torch.tensor([[5, 11, 13]])

    def log_probabilities(texts: list[tuple[int, ...]]) -> torch.Tensor:
        ids = torch.tensor([[START, *text] for text in texts])
        with torch.no_grad():
            hidden = model(source.expand(len(ids), -1), decoder_input_ids=ids)
            return model.logits(hidden[:, -1]).double().log_softmax(-1)

    scored: dict[tuple[int, ...], float] = {}
    live: dict[tuple[int, ...], float] = {(): 0.0}
    for length in range(1, 4):
        following: dict[tuple[int, ...], float] = {}
        for (text, total), row in zip(live.items(), log_probabilities(list(live))):
            for index, value in enumerate(row.tolist()):
                if index == end:
                    scored[text] = (total + value) / length**penalty
                elif index in (1, 2, 3, 4, 6):  # so few that beams can hold all texts
                    following[*text, index] = total + value
        live = following
    scored |= {text: total / 3**penalty for text, total in live.items()}
    best = sorted(scored.items(), key=lambda item: -item[1])[:5]
    (found,) = beam_search(
        model,
        source.tolist(),
        beams=Beams(41, penalty, early_stopping="never", num_return=5),
        max_new_tokens=3,
        stop_ids=[end],
        decoder_start=[START],
        banned_ids=[i for i in range(model.spec.vocab_size) if i not in (1, 2, 3, 4, 6, end)],
    )
    assert [text.ids for text in found] == [ids for ids, _ in best]
    assert [text.score for text in found] == pytest.approx([s for _, s in best], rel=1e-4)


def test_finished_texts_leave_the_batch(bart):
    """The decoder reads ever fewer rows, and the encoder's memory is kept once for all beams."""
    free = beam_search(bart, PROMPTS, beams=Beams(1), max_new_tokens=NEW, decoder_start=[START])
    stops = [text.ids[place] for (text,), place in zip(free, (1, 3, 5, 7), strict=True)]
    rows, memories = [], set()

    def look(_, inputs, options):
        rows.append(len(inputs[0]))
        memory = options["cache"].layers[0].memory
        memories.update(() if memory is None else [len(memory[0]) / len(inputs[0])])

    handle = bart.decoder.register_forward_pre_hook(look, with_kwargs=True)
    options = {"max_new_tokens": NEW, "decoder_start": [START], "stop_ids": stops}
    beam_search(bart, PROMPTS, beams=Beams(4, early_stopping=True), **options)
    handle.remove()
    assert rows[0] == len(PROMPTS)  # one row a text until there are several beams
    assert rows[1] == 4 * len(PROMPTS)
    assert sorted(rows[1:], reverse=True) == rows[1:]
    assert rows[-1] < rows[1]
    assert memories == {0.25}


def test_recurrent_models_and_n_grams_search_as_well():
    described = (
        spec.RNNSpec(
            vocab_size=43,
            d_model=11,
            d_hidden=13,
            num_layers=2,
            cell="lstm",
            heads=(spec.LMHead(tied=False),),
        ),
        spec.NGramSpec(
            vocab_size=43, d_model=11, d_hidden=13, order=4, heads=(spec.LMHead(tied=False),)
        ),
    )
    prompts = [[7, 3, 11], [13], [17, 19, 23, 29, 31]]
    for one in described:
        model = build(one, seed=1).eval()
        with torch.no_grad():
            for weight in model.parameters():
                weight.mul_(4.0)
        options = {"beams": Beams(3, num_return=3), "max_new_tokens": 7, "stop_ids": [5]}
        batched = beam_search(model, prompts, **options)
        assert_same(batched, [beam_search(model, [p], **options)[0] for p in prompts])
        for prompt, texts in zip(prompts, batched, strict=True):
            text = next(text for text in texts if len(text.ids) == 7)
            with torch.no_grad():
                hidden = model(torch.tensor([[*prompt, *text.ids[:-1]]]))[0, -7:]
                scores = model.logits(hidden).log_softmax(-1)[torch.arange(7), list(text.ids)]
            assert text.score == pytest.approx(float(scores.mean()), rel=1e-4)


def test_ends_where_positions_end(bart):
    options = {"beams": Beams(2), "max_new_tokens": 1000, "decoder_start": [START]}
    found = beam_search(bart, PROMPTS[:1], **options, forced_eos_id=23)
    assert len(found[0][0].ids) == POSITIONS
    assert found[0][0].ids[-1] == 23


def test_decoders_near_the_end_of_their_positions_are_not_shortened_by_others():
    model = small_model("gpt2")
    last = model.spec.max_length
    prompts = [[3] * (last - 5), [5, 7]]
    found = decode_all(model, prompts, beams=Beams(2), max_new_tokens=11)
    assert [len(texts[0].ids) for texts in found] == [6, 11]


def test_padded_vocabulary_rows_are_never_chosen(bart):
    options = {"beams": Beams(4, num_return=4), "max_new_tokens": NEW, "decoder_start": [START]}
    free = beam_search(bart, PROMPTS, **options)
    assert max(max(text.ids) for texts in free for text in texts) >= 50
    found = beam_search(bart, PROMPTS, vocab_size=50, **options)
    assert max(max(text.ids) for texts in found for text in texts) < 50


def test_progress_counts_what_is_done(bart):
    seen = []
    sources = [*PROMPTS, PROMPTS[0], PROMPTS[0]]
    decode_all(
        bart,
        sources,
        beams=Beams(2),
        max_new_tokens=3,
        batch_tokens=8,
        decoder_start=[START],
        progress=lambda done, count: seen.append((done, count)),
    )
    assert seen == [(1, 6), (4, 6), (6, 6)]
    assert decode_all(bart, [], beams=Beams(2), max_new_tokens=3, decoder_start=[START]) == []


def test_nothing_new_but_what_is_forced(bart):
    found = beam_search(
        bart, [[3]], beams=Beams(2), max_new_tokens=1, decoder_start=[START], forced_bos_id=5
    )
    assert found == [[Hypothesis((), 0.0)]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_beams": 0}, "num_beams is 0"),
        ({"early_stopping": "maybe"}, "early_stopping is 'maybe'"),
        ({"num_beams": 2, "num_return": 3}, "1 to num_beams, 2"),
        ({"no_repeat_ngram": -1}, "no_repeat_ngram is -1"),
        ({"min_new_tokens": -1}, "min_new_tokens is -1"),
    ],
)
def test_refuses_impossible_settings(options, message):
    with pytest.raises(TriviumError, match=message):
        Beams(**options)


def test_refuses_before_any_work(bart):
    options = {"beams": Beams(2), "max_new_tokens": 3}
    with pytest.raises(SpecError, match="decoder_start"):
        beam_search(bart, PROMPTS, **options)
    with pytest.raises(SpecError, match="no tokens"):
        beam_search(bart, [[3], []], decoder_start=[START], **options)
    with pytest.raises(SpecError, match="end at"):
        decode_all(bart, [[3] * (POSITIONS + 1)], decoder_start=[START], **options)
    with pytest.raises(TriviumError, match="batch_tokens is 0"):
        decode_all(bart, PROMPTS, decoder_start=[START], batch_tokens=0, **options)
    with pytest.raises(TriviumError, match=f"only {VOCAB} ids"):
        beam_search(bart, PROMPTS, beams=Beams(VOCAB + 1), max_new_tokens=3, decoder_start=[START])
    assert beam_search(bart, [], decoder_start=[START], **options) == []


@pytest.mark.parametrize("width", [5, 101, 640, 1031])
@pytest.mark.parametrize("count", [1, 3, 5])
def test_the_largest_equal_a_full_search(width, count):
    scores = torch.randn(7, width, generator=torch.Generator().manual_seed(width))
    scores[3, 2:] = -torch.inf
    scores[5, -1] = 9.0
    best, places = largest(scores, count)
    assert torch.equal(best, scores.topk(count).values)
    assert torch.equal(scores.gather(1, places), best)


def test_what_would_repeat_is_forbidden():
    ids = torch.tensor([[0, 0, 3, 5, 3], [7, 3, 9, 7, 3], [3, 3, 3, 3, 3]])
    left = torch.tensor([[2], [0], [0]])

    def forbidden(size: int) -> list[list[int]]:
        ruled_out = forbid_repetition(torch.zeros(3, 11), ids, size, left).isinf()
        return [row.nonzero()[:, 0].tolist() for row in ruled_out]

    assert forbidden(1) == [[3, 5], [3, 7, 9], [3]]
    assert forbidden(2) == [[5], [9], [3]]
    assert forbidden(3) == [[], [9], [3]]
    assert forbidden(6) == [[], [], []]
