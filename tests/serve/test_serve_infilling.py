"""`suffix` of /v1/completions: the text that fills a gap, as OpenAI's client asks for it."""

from __future__ import annotations

import openai
import pytest
from serving import decoder, running, save_all

from trivium.text.infilling import FIM_TOKENS


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    lm = decoder().with_new_tokens(special_tokens=FIM_TOKENS)
    folder = tmp_path_factory.mktemp("infilling")
    return lm, {**save_all(folder), "fim": str(lm.save(folder / "fim"))}


def test_a_gap_is_filled(models):
    lm, paths = models
    expected = lm.infill("The weather", " and windy.", temperature=0, max_new_tokens=7)
    with running(paths) as server:
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none")
        options = {"max_tokens": 7, "temperature": 0, "suffix": " and windy."}
        reply = client.completions.create(model="fim", prompt="The weather", **options)
        assert reply.choices[0].text == expected
        assert reply.usage.prompt_tokens == len(lm.infill_ids("The weather", " and windy."))
        pieces = client.completions.create(
            model="fim", prompt=["The weather", "It"], stream=True, **options
        )
        texts = ["", ""]
        for piece in pieces:
            texts[piece.choices[0].index] += piece.choices[0].text
        second = lm.infill("It", " and windy.", temperature=0, max_new_tokens=7)
        assert texts == [expected, second]
        for changes, message in (
            ({"model": "decoder"}, "no tokens to fill in the middle"),
            ({"model": "translator"}, "infilling is for decoders"),
            ({"prompt": [1, 2]}, "the prompt is a text, not token ids"),
            ({"echo": True}, "echo returns the beginning"),
        ):
            body = {"model": "fim", "prompt": "a", **options, **changes}
            with pytest.raises(openai.BadRequestError, match=message):
                client.completions.create(**body)
