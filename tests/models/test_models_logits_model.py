"""A module of one's own generates and scores as the model whose logits it gives."""

from __future__ import annotations

import pytest
import torch
from small_models import SPECS, random_model
from torch import nn

from trivium.errors import SpecError
from trivium.language_model import LanguageModel
from trivium.objectives import Objective, TensorBatch
from trivium.text import Tokenizer

pytestmark = pytest.mark.usefixtures("double_precision")

PROMPTS = ["The weather was", "", "a longer beginning of a text"]


class Logits(nn.Module):
    """Only the logits of a model, without its cache."""

    def __init__(self, model) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.model.logits(self.model(ids))


def make_pair() -> tuple[LanguageModel, LanguageModel]:
    model = random_model(SPECS["gpt2"].replace(vocab_size=263))
    vocabulary = {number: bytes([number]) for number in range(256)}
    tokenizer = Tokenizer.from_merges(vocabulary, [], ["<|endoftext|>"])
    own = LanguageModel.from_module(Logits(model), tokenizer, max_length=model.spec.max_length)
    return LanguageModel(model.spec, model, tokenizer), own


def test_it_generates_and_scores_as_the_model_it_wraps(tmp_path):
    lm, own = make_pair()
    assert own.capabilities == ("logits", "generate", "score")
    greedy = {"temperature": 0.0, "max_new_tokens": 9}
    assert own.generate(PROMPTS, **greedy) == lm.generate(PROMPTS, **greedy)
    longest = "a" * (lm.spec.max_length - 3)
    with pytest.warns(UserWarning, match="positions"):
        assert own.generate(longest, **greedy) == lm.generate(longest, **greedy)
    assert own.score(PROMPTS[2]) == pytest.approx(lm.score(PROMPTS[2]), rel=1e-9)
    with pytest.raises(SpecError, match=r"Keep its state_dict"):
        own.save(tmp_path / "own")
    with pytest.raises(SpecError, match="Hugging Face has no LogitsModel"):
        own.save_hf(tmp_path / "own")


def test_an_objective_trains_it():
    lm, own = make_pair()
    ids = torch.randint(256, (3, 7))
    batch = TensorBatch({"input_ids": ids}, torch.tensor([1, 5, 20]), torch.tensor([9, 8, 7]))
    losses = [Objective.kinds["causal"]().loss(model.module, batch)["loss"] for model in (lm, own)]
    torch.testing.assert_close(losses[0], losses[1])


def test_what_it_does_not_take_is_refused():
    _, own = make_pair()
    with pytest.raises(SpecError, match="takes no document_ids"):
        own.module(torch.zeros(1, 3, dtype=torch.int64), document_ids=torch.ones(1, 3))
    with pytest.raises(SpecError, match="padding on the right"):
        own.logits([[1, 2]], attention_mask=[[0, 1]])
    with pytest.raises(SpecError, match=r"into logits \[1, 1, V\]; this gave \[1, 1\]"):
        LanguageModel.from_module(nn.Identity())
