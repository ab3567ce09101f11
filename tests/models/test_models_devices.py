"""Forward passes make every tensor on the device of their inputs: nothing is copied to a GPU."""

from __future__ import annotations

import traceback
from collections import Counter

import pytest
import torch
from small_models import ALL_SPECS, inputs_for, random_ids, small_model
from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors

from trivium import spec
from trivium.inference.forward import extend
from trivium.models import build
from trivium.presets import presets

LENGTH = 16
SCALINGS = (
    None,
    spec.LinearScaling(factor=2.0),
    spec.Llama3Scaling(factor=2.0, original_max_length=8),
    spec.DynamicScaling(factor=2.0, original_max_length=8),
    spec.YarnScaling(factor=2.0, original_max_length=8),
    spec.LongRopeScaling(
        factor=2.0, original_max_length=8, short_factor=(1.0, 1.5), long_factor=(2.0, 3.0)
    ),
)


class MadeOnTheCPU(TorchFunctionMode):
    """Counts the places that make a tensor without naming a device, or from numbers in Python."""

    def __init__(self):
        super().__init__()
        self.places = Counter()

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        copies = func in (torch.from_numpy, torch.Tensor.new_tensor)
        if copies or (func in _device_constructors() and kwargs.get("device") is None):
            frame = [each for each in traceback.extract_stack() if "trivium" in each.filename][-1]
            self.places[f"{frame.filename}:{frame.lineno}: {frame.line}"] += 1
        return func(*args, **kwargs)


def places(model, inputs):
    """The places in a second training pass, and in a second decode step if the model decodes."""
    model(**inputs)  # constants are copied once
    with MadeOnTheCPU() as made:
        model(**inputs)
    if model.spec.family != "encoder-only":
        cache, ids = model.eval().new_cache(2, 2 * LENGTH), inputs["input_ids"]
        name = "input_ids" if model.spec.family == "decoder-only" else "decoder_input_ids"
        with torch.inference_mode():
            if name == "decoder_input_ids":
                cache.set_encoder_output(torch.arange(2), model.encode(ids))
            model(**{name: ids}, cache=cache)
            with made:
                model(**{name: ids[:, :1]}, cache=cache)
    return made.places


@pytest.mark.parametrize("name", [name for name in presets if name.endswith("-tiny")])
def test_a_preset_makes_its_tensors_on_the_device_of_the_inputs(name):
    ids = random_ids(2, LENGTH)
    model = build(presets[name].replace(vocab_size=ids.max().item() + 1), seed=0)
    inputs = {"input_ids": ids}
    if model.spec.family == "encoder-decoder":
        inputs["decoder_input_ids"] = ids
    assert not places(model, inputs)


@pytest.mark.parametrize("name", ALL_SPECS)
def test_a_kind_of_part_makes_its_tensors_on_the_device_of_the_inputs(name):
    assert not places(small_model(name), inputs_for(name, random_ids(2, LENGTH)))


@pytest.mark.parametrize("scaling", SCALINGS, ids=lambda each: each.kind if each else "none")
def test_rotary_frequencies_are_made_on_the_device_of_the_inputs(scaling):
    model = small_model("llama")
    layers = model.spec.decoder.layers[0].mixer
    mixer = layers.replace(positions=spec.Rotary(scaling=scaling), head_dim=4)
    model = build(model.spec.replace(decoder=model.spec.decoder.with_layers(mixer=mixer)))
    ids = random_ids(2, LENGTH)
    assert not places(model, {"input_ids": ids})
    # A compiled decode step computes the same, and nothing in it warns.
    step = torch.compile(extend, dynamic=False, fullgraph=True, backend="eager")
    found = []
    with torch.inference_mode():
        for run in (extend, step):
            cache = model.new_cache(2, 2 * LENGTH)
            extend(model, cache, ids)
            lengths = torch.ones(2, dtype=torch.int64)
            with cache.fixed_shapes(None if run is extend else 2 * LENGTH):
                found.append(run(model, cache, ids[:, :1], lengths=lengths))
    torch.testing.assert_close(*found)
