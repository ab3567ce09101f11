"""Properties of every model family: what a position may depend on, and what never matters."""

from __future__ import annotations

import itertools

import pytest
import torch
from small_models import (
    ALL_SPECS,
    BIDIRECTIONAL,
    BOTH,
    DECODERS,
    GENERATING,
    SOURCE_LENGTH,
    SPECS,
    TRANSFORMERS,
    VOCABULARY,
    WIDTH,
    inputs_for,
    random_ids,
    random_model,
    small_model,
)

from trivium import spec
from trivium.errors import SpecError
from trivium.inference.forward import prefill
from trivium.nn import mask as mask_module
from trivium.nn.state import RollingKVCache
from trivium.presets import presets
from trivium.spec import XLNetPositions

pytestmark = pytest.mark.usefixtures("double_precision")

ROWS, LENGTH, LONG = 3, 19, 37
ROW_LENGTHS = torch.tensor([[LONG], [23], [5]])
CPU = torch.profiler.ProfilerActivity.CPU


def logits_of(model, **inputs):
    return model.logits(model(**inputs))


def changed_at(ids, column):
    """The ids with another token in one column."""
    changed = ids.clone()
    changed[:, column] = ids[:, column] % (VOCABULARY - 1) + 1
    return changed


def close(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-9)


def both_modes(name):
    """Without gradients the kernels compute attention, with gradients eager attention."""
    for context in (torch.no_grad, torch.enable_grad):
        with context():
            yield small_model(name)


@pytest.mark.parametrize("name", GENERATING)
def test_no_token_depends_on_a_later_one(name):
    ids = random_ids(ROWS, LENGTH)
    for model in both_modes(name):
        before = logits_of(model, **inputs_for(name, ids))
        for column in (0, 7, LENGTH - 3):
            after = logits_of(model, **inputs_for(name, changed_at(ids, column)))
            close(after[:, :column], before[:, :column])  # experts sum in another order
            difference = (before - after).abs().amax((0, 2))
            assert difference[column] > 1e-5, (name, column)
            assert difference[column + 1 :].max() > 1e-5, (name, column)  # not all see the next


@pytest.mark.parametrize("name", BIDIRECTIONAL + BOTH)
def test_an_encoder_sees_both_sides_and_the_whole_source(name):
    ids = random_ids(1, SOURCE_LENGTH)
    for model in both_modes(name):
        encode = model.encode if name in BOTH or hasattr(model, "encode") else model
        difference = (encode(ids) - encode(changed_at(ids, 5))).abs().amax(-1)
        assert (difference > 1e-6).all()


@pytest.mark.parametrize("name", ALL_SPECS)
def test_padding_changes_nothing(name):
    lengths = torch.tensor([LENGTH, 1, 7])
    real = torch.arange(LENGTH) < lengths[:, None]
    ids = torch.where(real, random_ids(ROWS, LENGTH), 5)
    inputs = inputs_for(name, ids, real=real)
    for model in both_modes(name):
        together = model(**inputs)
        for row, length in enumerate(lengths.tolist()):
            alone = inputs_for(name, ids[row : row + 1, :length])
            if name in BOTH:
                alone["input_ids"] = inputs["input_ids"][row : row + 1]
            close(together[row, :length], model(**alone)[0])


@pytest.mark.parametrize("name", BOTH)
def test_padding_of_the_source_changes_nothing(name):
    lengths = [11, 1, 7]
    real = torch.arange(11) < torch.tensor(lengths)[:, None]
    source, target = random_ids(ROWS, 11, seed=2), random_ids(ROWS, 7)
    for model in both_modes(name):
        together = model(source, attention_mask=real.long(), decoder_input_ids=target)
        for row, length in enumerate(lengths):
            one = slice(row, row + 1)
            close(together[one], model(source[one, :length], decoder_input_ids=target[one]))


@pytest.mark.parametrize(
    "name", [name for name, each in ALL_SPECS.items() if each.supports_packing]
)
def test_packed_documents_equal_separate_ones(name):
    lengths = [3, 7, 1, 8]
    documents = torch.repeat_interleave(torch.arange(1, 5), torch.tensor(lengths))[None]
    positions = torch.cat([torch.arange(length) for length in lengths])[None]
    ids = random_ids(1, LENGTH)
    for model in both_modes(name):
        read = model.encode if name in BOTH else model
        packed = read(ids, document_ids=documents, position_ids=positions)
        separate = [read(part) for part in ids.split(lengths, 1)]
        close(packed, torch.cat(separate, 1))


def test_two_directions_of_elmo_are_independent():
    model, ids = small_model("elmo"), random_ids(1, 7)
    before, after = (model.two_ways(i) for i in (ids, changed_at(ids, 3)))
    close(after[:, 0, :3], before[:, 0, :3])
    close(after[:, 1, 4:], before[:, 1, 4:])
    close(before[:, 0], model(ids))


@pytest.mark.parametrize("name", GENERATING)
def test_micro_batches_change_no_loss_and_no_gradient(name):
    labels = random_ids(ROWS, LENGTH, seed=3)
    gradients = []
    for size in (ROWS, 1):
        model = small_model(name)
        for ids, targets in zip(random_ids(ROWS, LENGTH).split(size), labels.split(size)):
            hidden = (
                model(**inputs_for(name, ids))
                if name not in BOTH
                else model(random_ids(1, SOURCE_LENGTH).expand(len(ids), -1), decoder_input_ids=ids)
            )
            model.lm_loss(hidden.flatten(0, 1), targets.flatten()).backward()
        gradients.append([p.grad for p in model.parameters() if p.grad is not None])
    for whole, split in zip(*gradients, strict=True):
        torch.testing.assert_close(split, whole, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ALL_SPECS)
def test_selected_positions_are_those_of_the_whole(name):
    gather_positions = torch.tensor([0, 5, 20, 56])
    for model in both_modes(name):
        inputs = inputs_for(name, random_ids(ROWS, LENGTH))
        close(
            model(**inputs, gather_positions=gather_positions),
            model(**inputs).flatten(0, 1)[gather_positions],
        )


def cached(model, name, cache, source, ids, **options):
    """Logits of more tokens; an encoder-decoder finds its source in the cache."""
    if name in BOTH:
        return logits_of(model, decoder_input_ids=ids, cache=cache, **options)
    return logits_of(model, input_ids=ids, cache=cache, **options)


def expected(model, name, source, ids):
    if name in BOTH:
        return logits_of(model, input_ids=source, decoder_input_ids=ids)[0]
    return logits_of(model, input_ids=ids)[0]


def with_rings(names):
    """The names; then those with windows, whose slots are then rings of a few tokens."""
    rings = [name for name in names if has_window(ALL_SPECS[name])]
    return [
        *(pytest.param(name, False, id=name) for name in names),
        *(pytest.param(name, True, id=f"{name}-rings") for name in rings),
    ]


def has_window(described):
    """Whether a decoder has sliding windows, of which a cache keeps the last tokens alone."""
    decoder = getattr(described, "decoder", None)
    mixers = decoder.mixers if decoder is not None else ()
    return any(
        each.kind == "attention" and isinstance(each.pattern, spec.Sliding)  # type: ignore
        for each in mixers
    )


def model_with(rings, name, monkeypatch):
    """The model; with rings, those that are kept have only two slots to spare."""
    if rings:
        monkeypatch.setattr(RollingKVCache, "SPARE", 2)
    model = small_model(name)
    states = model.new_cache(1, LENGTH).states
    if rings:
        assert any(isinstance(state, RollingKVCache) for state in states)
    return model


@pytest.mark.parametrize(("name", "rings"), with_rings(GENERATING))
@torch.no_grad()
def test_cached_equals_uncached_with_slots_in_any_order(name, rings, monkeypatch):
    """Four texts of different lengths enter five slots, move on, leave, and are copied."""
    texts = [random_ids(1, LENGTH, seed=seed) for seed in range(4)]
    source = random_ids(4, SOURCE_LENGTH, seed=9)
    model = model_with(rings, name, monkeypatch)
    cache = model.new_cache(5, LENGTH)
    assert cache.lengths.tolist() == [0] * 5
    whole = [expected(model, name, source[i : i + 1], texts[i]) for i in range(4)]
    if name in BOTH:
        cache.set_encoder_output(torch.tensor([3, 0]), model.encode(source[:2, :5]))  # stale
        cache.set_encoder_output(torch.tensor([3, 0, 4, 1]), model.encode(source))
    # A prefill of two texts, padded on the right, then two others, then chunks of one.
    held = {3: 0, 0: 1, 4: 2, 1: 3}  # slot -> text
    for slots, lengths in (([3, 0], [7, 2]), ([4, 1], [3, 5]), ([3, 4], [4, 1])):
        starts = cache.lengths[torch.tensor(slots)].tolist()
        ids = torch.full((len(slots), max(lengths) + 1), 7)
        for row, (slot, start, length) in enumerate(zip(slots, starts, lengths)):
            ids[row, :length] = texts[held[slot]][0, start : start + length]
        options = {"slots": torch.tensor(slots), "lengths": torch.tensor(lengths)}
        logits = cached(model, name, cache, source, ids, **options)
        for row, (slot, start, length) in enumerate(zip(slots, starts, lengths)):
            close(logits[row, :length], whole[held[slot]][start : start + length])
    assert cache.lengths.tolist() == [2, 5, 0, 11, 4]
    # Decode steps of all rows; slot 2 is free and must not disturb.
    for _ in range(3):
        starts = cache.lengths.tolist()
        step = [texts[held[s]][0, starts[s]] if s in held else torch.tensor(1) for s in range(5)]
        active = torch.tensor([1, 1, 0, 1, 1])
        logits = cached(model, name, cache, source, torch.stack(step)[:, None], lengths=active)
        for slot, text in held.items():
            close(logits[slot, 0], whole[text][starts[slot]])
    # Slot 4 ends; slot 3's text continues in slots 2 and 4 too.
    cache.free(4)
    cache.copy(torch.tensor([3, 3]), torch.tensor([2, 4]))
    start = int(cache.lengths[3])
    assert cache.lengths.tolist() == [5, 8, start, start, start]
    logits = cached(
        model,
        name,
        cache,
        source,
        texts[0][:, start : start + 2].expand(3, -1),
        slots=torch.tensor([4, 2, 3]),
    )
    for row in range(3):
        close(logits[row], whole[0][start : start + 2])


@pytest.mark.parametrize(("name", "rings"), with_rings(DECODERS))
@torch.no_grad()
def test_slots_of_equal_length_need_no_mask_and_can_be_shortened(name, rings, monkeypatch):
    """By as many tokens as the model can take back; by more is an error."""
    ids, source = random_ids(2, LENGTH), random_ids(2, SOURCE_LENGTH, seed=9)
    model = model_with(rings, name, monkeypatch)
    cache = model.new_cache(2, LENGTH)
    if name in BOTH:
        cache.set_encoder_output(torch.arange(2), model.encode(source))
    parts = [cached(model, name, cache, source, part) for part in ids.split([7, 1, 11], 1)]
    whole = [expected(model, name, source[i : i + 1], ids[i : i + 1]) for i in range(2)]
    close(torch.cat(parts, 1), torch.stack(whole))
    first, second = (LENGTH - min(most, cache.max_crop) for most in (14, 16))
    cache.crop(torch.tensor([1, 0]), torch.tensor([second, first]))
    assert cache.lengths.tolist() == [first, second]
    if second < LENGTH:
        end = min(second + 6, LENGTH)
        more = ids[1:, second:end]
        logits = cached(model, name, cache, source, more, slots=torch.tensor([1]))
        close(logits[0], whole[1][second:end])
    if cache.max_crop < LENGTH:
        too_far = torch.tensor([LENGTH - cache.max_crop - 1])
        with pytest.raises(SpecError, match=f"at most by {cache.max_crop}"):
            cache.crop(torch.tensor([1]), too_far)


@pytest.mark.parametrize("name", ALL_SPECS)
def test_a_row_does_not_depend_on_the_other_rows(name):
    """With a mask, with a mask of ones and without any."""
    ids, real = random_ids(ROWS, LONG), torch.arange(LONG) < ROW_LENGTHS
    for model in both_modes(name):
        longest = model.spec.max_length or LONG
        for mask in (None, torch.ones_like(real), real):
            mask = None if mask is None else mask[:, :longest]
            inputs = inputs_for(name, ids[:, :longest], real=mask)
            together = model(**inputs)
            for row in range(ROWS):
                alone = model(**{key: each[row : row + 1] for key, each in inputs.items()})[0]
                shown = slice(None) if mask is None else mask[row]
                close(together[row][shown], alone[shown])


@pytest.mark.parametrize("name", [name for name in presets if name.endswith("-tiny")])
@torch.no_grad()
def test_a_row_of_a_preset_does_not_depend_on_the_other_rows(name):
    model = random_model(presets[name].replace(vocab_size=VOCABULARY))
    mixers = [mixer for stack in getattr(model.spec, "stacks", ()) for mixer in stack.mixers]
    dense = max((getattr(mixer, "dense_length", 0) for mixer in mixers), default=0)
    ids = random_ids(2, dense + LENGTH)
    real = torch.arange(ids.shape[1]) < torch.tensor([[ids.shape[1]], [ids.shape[1] - 7]])
    for mask in (None, real):
        inputs = {"input_ids": ids} if mask is None else {"input_ids": ids, "attention_mask": mask}
        if model.spec.family == "encoder-decoder":
            inputs["decoder_input_ids"] = random_ids(2, LENGTH, seed=3)
        together = model(**inputs)
        for row in range(2):
            alone = model(**{key: each[row : row + 1] for key, each in inputs.items()})[0]
            whole = mask is None or model.spec.family == "encoder-decoder"
            shown = slice(None) if whole else mask[row]
            close(together[row][shown], alone[shown])


@pytest.mark.parametrize("family", ["encoder-only", "decoder-only", "encoder-decoder"])
@torch.no_grad()
def test_token_types_that_attention_compares_count_in_every_family(family):
    """The last token of one layer sees the same in an encoder and in a decoder."""
    attention = spec.Attention(num_heads=3, head_dim=10, positions=XLNetPositions())
    stack = SPECS["gpt2"].decoder.with_layers(num_layers=1, mixer=attention)
    plain = stack.with_layers(mixer=attention.replace(positions=None))
    sizes = {"vocab_size": VOCABULARY, "d_model": WIDTH, "embedding": spec.Embedding()}
    encoder = random_model(spec.TransformerSpec(**sizes, encoder=stack))
    ids, types = random_ids(2, 7), torch.tensor([[0, 0, 1, 1, 0, 1, 1], [1, 0, 0, 0, 0, 0, 0]])
    expected = encoder(ids, token_type_ids=types)
    assert (expected - encoder(ids)).abs().max() > 1e-4
    if family == "decoder-only":
        decoder = random_model(spec.TransformerSpec(**sizes, decoder=stack))
        weights = encoder.state_dict()
        decoder.load_state_dict({n.replace("encoder.", "decoder."): w for n, w in weights.items()})
        close(decoder(ids, token_type_ids=types)[:, -1], expected[:, -1])
        with pytest.raises(SpecError, match="token_type_ids"):
            decoder(ids, token_type_ids=types, cache=decoder.new_cache(2, 7))
    elif family == "encoder-decoder":
        heads = (spec.LMHead(tied=True),)
        both = random_model(
            spec.TransformerSpec(**sizes, encoder=stack, decoder=plain, heads=heads)
        )
        both.encoder.load_state_dict(encoder.encoder.state_dict())
        both.tokens.load_state_dict(encoder.tokens.state_dict())
        close(both.encode(ids, token_type_ids=types), expected)


def peak_of_tensors(compute) -> int:
    """Bytes of all tensors that a computation allocates, when they are most."""
    with torch.profiler.profile(activities=[CPU], profile_memory=True) as profiler:
        compute()
    events = profiler.profiler.kineto_results.events()
    sizes = sorted((one.start_ns(), one.nbytes()) for one in events if one.name() == "[memory]")
    return max(itertools.accumulate(size for _, size in sizes))


@pytest.mark.parametrize(
    "name", [n for n, one in ALL_SPECS.items() if getattr(one, "max_length", 1) is None]
)
def test_the_memory_of_a_prompt_grows_with_its_length(name, monkeypatch):
    """Twice the tokens take about twice the memory; matrices [T, S] would take four times."""
    monkeypatch.setattr(mask_module, "_MAX_MASK", 2**15)
    model, peaks = small_model(name), []
    start = (1,) if name in BOTH else ()
    for length in (512, 1024):
        ids = random_ids(1, length)

        def read(ids=ids):
            if model.spec.family == "encoder-only":
                model(ids)
            else:
                prefill(model, model.new_cache(1, ids.shape[1]), [0], ids.tolist(), start)

        with torch.inference_mode():
            peaks.append(peak_of_tensors(read))
    assert peaks[1] < 3 * peaks[0], peaks


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_queries_that_are_computed_in_parts_have_the_same_states(name, monkeypatch):
    model, ids = small_model(name), random_ids(ROWS, LENGTH)
    real = torch.arange(LENGTH) < torch.tensor([LENGTH, 2, 7])[:, None]
    for inputs in (inputs_for(name, ids), inputs_for(name, ids, real=real)):
        whole = model(**inputs)
        monkeypatch.setattr(mask_module, "_MAX_MASK", 5 * LENGTH)
        with torch.no_grad():
            parts = model(**inputs)
        monkeypatch.undo()
        kept = inputs.get("attention_mask", inputs.get("decoder_attention_mask"))
        kept = slice(None) if kept is None else kept.bool()
        close(parts[kept], whole[kept].detach())
