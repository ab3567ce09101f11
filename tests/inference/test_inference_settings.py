"""Generation as a model's `generation_config.json` describes it, against `transformers`."""

from __future__ import annotations

import pytest
import torch
from double import double_precision
from generating_models import PROMPTS, VOCAB, hf_pair, until
from transformers import GenerationConfig

from trivium.inference.beam import beam_search
from trivium.inference.sampling_params import SamplingParams, options_from_config
from trivium.inference.text_model import prompt_ids
from trivium.interop.settings import Settings
from trivium.language_model import LanguageModel
from trivium.text import Tokenizer

SPECIALS = ["<pad>", "<s>", "</s>", "<unk>"]


def numbers() -> Tokenizer:
    """Words whose numbers are their ids."""
    words = [f"w{number:03d}" for number in range(len(SPECIALS), VOCAB)]
    return Tokenizer.train(
        "whitespace",
        texts=[" ".join(words)],
        vocab_size=VOCAB,
        special_tokens=SPECIALS,
        progress=False,
    )


@pytest.mark.filterwarnings("ignore:.*(a text ends|length).*:UserWarning")
@pytest.mark.parametrize("name", ["gpt2", "bart"])
def test_every_option_has_the_effect_that_it_has_in_transformers(name):
    with double_precision():
        check_options(name)


def check_options(name: str) -> None:
    words = numbers()
    hf, module = hf_pair(name)
    both = module.spec.family == "encoder-decoder"
    start = {"decoder_start_token_id": 1} if both else {}
    lm = LanguageModel(module.spec, module, words)
    texts = [words.decode(ids) for ids in PROMPTS]

    def theirs(config, beams):
        outputs = []
        for text in texts:
            prompt = prompt_ids(lm, text)
            hf.generation_config = GenerationConfig(**config, num_beams=beams)
            ids = hf.generate(torch.tensor([prompt]))[0]
            new = ids[1 if both else len(prompt) :].tolist()
            outputs.append(words.decode(until(new, config["eos_token_id"])).split())
        return outputs

    def ours(config, beams):
        lm.settings = Settings(generation=config)
        if beams == 1:
            outputs = lm.generate(texts)
        elif both:
            outputs = lm.translate(texts, num_beams=beams)
        else:
            outputs = []
            for text in texts:
                prompt = prompt_ids(lm, text)
                limit = lm.sampling_params(prompt, {}).max_new_tokens
                params = lm.beam_params(num_beams=beams)
                least = lm.sampling_params(prompt, {}).min_new_tokens
                params = params.replace(min_new_tokens=least)
                (results,) = beam_search(lm, [prompt], params, max_new_tokens=limit)
                outputs.append(words.decode(results[0].ids))
        return [text.split() for text in outputs]

    base = {"pad_token_id": 0, "max_new_tokens": 17, "do_sample": False, **start}
    free = [[words.token_to_id(word) for word in text] for text in ours(base, 1)]
    texts[1] = words.decode([free[0][0], free[1][0], 13])  # tokens that are generated, too
    # Some texts end early.
    base["eos_token_id"] = [2, free[0][4], free[2][8]]
    plain = {beams: ours(base, beams) for beams in (1, 4)}
    for option in (
        {"max_length": 13},
        {"max_new_tokens": 7},
        {"min_length": 12},
        {"min_new_tokens": 9},
        {"repetition_penalty": 1.7},
        {"no_repeat_ngram_size": 1},
        {"encoder_no_repeat_ngram_size": 1},
        {"suppress_tokens": [free[0][0], free[2][1]]},
        {"bad_words_ids": [[free[0][0]], [free[1][1]]]},
        {"begin_suppress_tokens": [ids[0] for ids in free]},
        *([{"forced_bos_token_id": 17}, {"forced_eos_token_id": 2}] if both else []),
        {"min_length": 12, "max_length": 15, "repetition_penalty": 0.8},
        {"length_penalty": -1.0, "num_beams": 3, "early_stopping": True},
    ):
        config = {**base, **option}
        if "max_length" in option:
            del config["max_new_tokens"]
        beams_only = config.pop("num_beams", None)
        changed = []
        for beams in (beams_only,) if beams_only else (1, 4):
            results = ours(config, beams)
            assert results == theirs(config, beams), (name, option, beams)
            changed.append(results != plain.get(beams))
        assert any(changed), (name, option)


def test_ids_that_do_not_exist_are_neither_suppressed_nor_waited_for():
    module, words = hf_pair("gpt2")[1], numbers()
    ids = {"eos_token_id": [7, 5000], "suppress_tokens": [5000, -1], "begin_suppress_tokens": [-1]}
    ids |= {"forced_bos_token_id": 5000, "forced_eos_token_id": 5000}
    options = {"temperature": 0.0, "max_new_tokens": 9, "min_new_tokens": 9}
    lm = LanguageModel(module.spec, module, words, Settings(generation=ids))
    assert len(lm.generate("w017", **options).split()) == 9
    rules = lm.generation_rules
    assert not rules.banned_ids | rules.begin_banned_ids
    # What a decoder generates is no target: nothing begins it.
    forced = LanguageModel(
        module.spec, module, words, Settings(generation={"forced_bos_token_id": 5})
    )
    assert forced.generation_rules.forced_start == ()


def test_a_max_length_that_the_prompt_fills_is_no_limit():
    for length, expected in ((3, 64), (20, 64), (21, 1), (30, 10)):
        options = options_from_config({"max_length": length}, SamplingParams, 20)
        assert SamplingParams(**options).max_new_tokens == expected


def test_options_come_before_settings_of_the_model_and_these_before_defaults():
    _, module = hf_pair("gpt2")
    settings = Settings(generation={"temperature": 0.5, "top_k": 9, "max_new_tokens": 5})
    lm = LanguageModel(module.spec, module, numbers(), settings)
    params = lm.sampling_params([1], {"top_k": 3}, temperature=1.0, top_p=0.7)
    assert (params.temperature, params.top_k, params.top_p) == (0.5, 3, 0.7)
    assert params.max_new_tokens == 5
