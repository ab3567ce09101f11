"""Several adapters on one base: each answers as if it was loaded alone, the weights are shared."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from serving import check_error, decoder, running, save_all, wait_until

from trivium.adapt import LoRA, add_lora
from trivium.errors import TriviumError
from trivium.interop.peft_format import save_adapter
from trivium.language_model import LanguageModel
from trivium.model_loading import load
from trivium.models import build
from trivium.serve.limits import Limits
from trivium.serve.models import parse_adapter_arguments
from trivium.spec import ClassifierHead

PROMPT = {"prompt": "The weather", "max_tokens": 12, "temperature": 0}
NAMES = ("one", "two")


def make_adapter(lm, folder, seed, base, lora=None):
    """Save a random adapter of a model."""
    lora = lora or LoRA(rank=2, targets=("all-linear",))
    module = build(lm.spec, seed=0)
    module.load_state_dict(lm.module.state_dict())
    add_lora(module, lora)
    generator = torch.Generator().manual_seed(seed)
    for weight in module.parameters():
        if weight.requires_grad:
            weight.data.normal_(0.0, 0.4, generator=generator)
    save_adapter(folder, module, lora, base=str(base))
    return str(folder)


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    folder = tmp_path_factory.mktemp("served")
    paths = save_all(folder)
    for seed, name in enumerate(NAMES):
        paths[name] = make_adapter(decoder(), folder / name, seed, paths["decoder"])
    classifier = load(paths["encoder"], device="cpu")
    head = ClassifierHead(num_labels=3, pooling="first")
    spec = classifier.spec.replace(heads=(head,))
    other = build(spec, seed=1)
    other.load_state_dict(
        {k: v for k, v in classifier.module.state_dict().items() if "heads" not in k}, strict=False
    )
    labelled = LanguageModel(spec, other, classifier.tokenizer)
    paths["labels"] = make_adapter(labelled, folder / "labels", 7, paths["encoder"])
    return paths


def adapters_of(paths, names=NAMES, base="decoder"):
    return {name: (base, paths[name]) for name in names}


def expected_texts(paths):
    base = load(paths["decoder"], device="cpu")
    lms = {"decoder": base} | {name: base.with_adapter(paths[name]) for name in NAMES}
    options = {"max_new_tokens": 12, "temperature": 0}
    return {name: lm.generate(PROMPT["prompt"], **options) for name, lm in lms.items()}


def test_each_adapter_answers_as_if_it_was_loaded_alone(paths):
    expected = expected_texts(paths)
    assert len({*expected.values()}) == 3
    names = ["decoder", *NAMES]
    served = {"decoder": paths["decoder"]}
    with (
        running(served, adapters=adapters_of(paths), load=load_packed) as server,
        ThreadPoolExecutor(6) as pool,
    ):

        def ask(name):
            answer = server.post("completions", {"model": name, **PROMPT})
            assert answer.status_code == 200, answer.text
            assert answer.json()["model"] == name
            return name, answer.json()["choices"][0]["text"]

        for name, text in pool.map(ask, names * 4):
            assert text == expected[name].removeprefix(PROMPT["prompt"]), name
        cards = server.get("/v1/models").json()["data"]
        assert {card["id"]: card["parent"] for card in cards} == {
            "decoder": None,
            "one": "decoder",
            "two": "decoder",
        }
        assert all("/v1/completions" in card["endpoints"] for card in cards)
        modules = {name: server.registry.get_model(name).lm.module for name in names}
        tensors = {name: {w.data_ptr() for w in m.parameters()} for name, m in modules.items()}
        assert tensors["decoder"] <= tensors["one"] & tensors["two"]
        error = check_error(server.post("completions", {"model": "three", **PROMPT}), 404)
        assert "decoder, one, two" in error["message"]


def load_packed(path):
    return load(path, device="cpu", pack=True)


def test_an_adapter_is_unloaded_with_its_base_and_loads_it_again(paths):
    served = {"decoder": paths["decoder"], "plain": paths["plain"]}
    limits = Limits(max_loaded=1)
    with running(served, adapters=adapters_of(paths), limits=limits) as server:

        def use(name):
            assert server.post("completions", {"model": name, **PROMPT}).status_code == 200
            return server.get("/healthz").json()["loaded"]

        assert use("one") == ["decoder", "one"]
        assert use("two") == ["decoder", "one", "two"]
        assert use("plain") == ["plain"]
        assert use("two") == ["decoder", "two"]
        with ThreadPoolExecutor(6) as pool:
            assert list(pool.map(use, ["plain", "one", "two"] * 4))
        wait_until(lambda: server.load_of("one") == 0)


def test_an_adapter_with_a_head_classifies(paths):
    lm = load(paths["labels"], device="cpu")
    expected = lm.classify("cloudy")
    with running(
        {"encoder": paths["encoder"]}, adapters=adapters_of(paths, ["labels"], "encoder")
    ) as server:
        answer = server.post("classify", {"model": "labels", "text": "cloudy"})
        assert answer.status_code == 200, answer.text
        assert answer.json()["data"][0]["label"] == expected.label
        endpoints = {c["id"]: c["endpoints"] for c in server.get("/v1/models").json()["data"]}
        assert "/v1/classify" in endpoints["labels"]
        assert "/v1/classify" not in endpoints["encoder"]


def test_an_adapter_that_does_not_fit_is_an_error_of_its_requests_alone(paths):
    served = {"encoder": paths["encoder"]}
    with running(served, adapters=adapters_of(paths, ["one"], "encoder")) as server:
        error = check_error(server.post("completions", {"model": "one", **PROMPT}), 503)
        assert "cannot be loaded now" in error["message"]
        assert server.post("tokenize", {"model": "encoder", "text": "a"}).status_code == 200


def test_arguments_of_adapters(paths, tmp_path):
    one, models = paths["one"], {"decoder": paths["decoder"]}
    assert parse_adapter_arguments([f"x={one}", one], models) == {
        "x": ("decoder", one),
        "one": ("decoder", one),
    }
    several = {"plain": paths["plain"], **models}
    assert parse_adapter_arguments([one], several) == {"one": ("decoder", one)}
    for arguments, served, message in (
        ([f"decoder={one}"], models, "a model and an adapter are called 'decoder'"),
        ([str(tmp_path)], models, "no adapter_config.json"),
        ([one], {"plain": paths["plain"], "encoder": paths["encoder"]}, "serve its base"),
    ):
        with pytest.raises(TriviumError, match=message):
            parse_adapter_arguments(arguments, served)
