"""lm-evaluation-harness gets the same numbers through the server as from the model itself."""

from __future__ import annotations

import pytest
from double import FLOAT32

from trivium.evaluate.harness import make_harness_model

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # of the harness and what it imports
]
CONTEXTS = ["The weather was", "Yesterday it", "today it's", "今天"]
CONTINUATIONS = [" cloudy", " rainy yesterday", " but"]


def instances(kind, arguments):
    from lm_eval.api.instance import Instance

    return [Instance(request_type=kind, doc={}, arguments=each, idx=0) for each in arguments]


def test_the_harness_client_of_openai_servers(served, models, tmp_path):
    pytest.importorskip("lm_eval", reason="lm-evaluation-harness is not installed")
    from lm_eval.models.openai_completions import LocalCompletionsAPI

    lm = models["decoder"]
    client = LocalCompletionsAPI(
        model="decoder",
        base_url=f"{served.url}/v1/completions",
        tokenizer=str(lm.save_hf(tmp_path / "hf")),  # the client counts tokens by itself
        tokenizer_backend="huggingface",
        slot_length=1013,
        batch_size=4,
        max_retries=1,
    )
    local = make_harness_model(lm)
    pairs = [(context, text) for context in CONTEXTS for text in CONTINUATIONS]
    requests = instances("loglikelihood", pairs)
    for served_score, score in zip(
        client.loglikelihood(requests), local.loglikelihood(requests), strict=True
    ):
        assert served_score[0] == pytest.approx(score[0], abs=FLOAT32)
        assert served_score[1] == score[1]
    options = {"until": ["."], "max_gen_toks": 7, "temperature": 0.0}
    requests = instances("generate_until", [(context, options) for context in CONTEXTS])
    assert client.generate_until(requests) == local.generate_until(requests)
