"""Reward modelling: training a model that scores responses, on preference pairs."""

from __future__ import annotations

import dataclasses
import math
import shlex
from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field
from torch.nn import functional as F

from trivium.data.batch import Batch, RowBatch
from trivium.data.encoded import EncodedExamples
from trivium.data.records import Record, json_type
from trivium.data.row_order import RowRandom
from trivium.data.schema import Fields, Slot
from trivium.errors import DataError
from trivium.interop.settings import Settings
from trivium.language_model import LanguageModel
from trivium.messages import english
from trivium.models import LanguageModule
from trivium.models.base_model import Spec
from trivium.models.heads import Head
from trivium.models.heads.text import Pooling
from trivium.objectives.chat import get_chat_template
from trivium.objectives.conversations import Turn, prepend_prompt
from trivium.objectives.labelled import column_key, encode_texts
from trivium.objectives.preference_pairs import (
    Preference,
    PreferencePairs,
    build_pair_batch,
    stack_pairs,
    unstack_pairs,
)
from trivium.objectives.task_heads import SingleStackTask, build_classifier_head, choose_pooling
from trivium.objectives.task_metrics import Metrics, Mistake, read_prediction
from trivium.objectives.tensor_batch import LossTerms, TensorBatch, forward_hidden
from trivium.text.vocabulary import Vocabulary

MARGIN = Fields("margin?", ("margin",))
_MAX_TEXT = 500  # characters of a text in an example command


class Reward(SingleStackTask, PreferencePairs):
    """Training of a reward model r, which gives the higher score to the preferred response.

    L = - log sigmoid(r(x, y+) - r(x, y-) - m) + lambda (r(x, y+) + r(x, y-))^2

    x is the prompt, y+ the chosen and y- the rejected response. r is a regression model that reads
    a prompt and a response as one text. Messages are formatted with the chat template. Example:

        chosen    [CLS] who wrote it ? Ada did . [SEP]    r =  1.3
        rejected  [CLS] who wrote it ? go away . [SEP]    r = -0.8

    m is the margin of the pair, 0 by default, and lambda is `center`. The first term does not
    determine the mean of the rewards; the second term keeps it close to 0.

    Source: Bradley and Terry 1952; Ouyang et al. 2022, equation 1; Touvron et al. 2023 (Llama 2),
    equation 2, for m; Eisenstein et al. 2023, section 5.1, for lambda.
    """

    kind: Literal["reward"] = "reward"
    measures_cut_answers: ClassVar[bool] = True
    fields: ClassVar[Sequence[Slot]] = (*PreferencePairs.fields, MARGIN)
    margin_field: str | None = column_key(
        "column of the margin, the minimum difference of the rewards", MARGIN
    )
    center: float = Field(
        0.0, ge=0, description="weight of the squared sum of both rewards, for example 0.01"
    )
    pooling: Pooling | None = Field(
        None,
        description="pooling of hidden states; default: first, for decoders and XLNet last, "
        "for ELMo mean",
    )

    def read_example(self, record: Record) -> Preference:
        """Read a preference pair and its margin from a record.

        Raises DataError if the margin is not a finite number, or if the pair is invalid.
        """
        one = super().read_example(record)
        if "margin" not in record.columns:
            return one
        name = record.columns["margin"]
        value = record.value(name)
        try:
            margin = math.nan if isinstance(value, bool) else float(value)
        except (TypeError, ValueError):
            margin = math.nan
        if not math.isfinite(margin):
            kind = json_type(value)
            raise DataError(f"{record.name(name)} is {kind}, not a finite number.")
        return dataclasses.replace(one, margin=margin)

    def add_settings(self, settings: Settings, examples: Sequence[Preference]) -> Settings:
        """Return the model settings for a regression model with the single label "reward"."""
        settings = settings.with_labels(("reward",), "regression")
        return settings.with_task("classification", pairs=False).with_task("reward")

    def heads(self, spec: Spec, labels: Sequence[str] = ()) -> tuple[Head, ...]:
        """Return one head, which predicts one number per text.

        Raises RecipeError if the objective does not support the model.
        """
        self.require_fit(spec)
        return (build_classifier_head(spec, 1, self.pooling or choose_pooling(spec)),)

    def encode(self, examples: Sequence[Preference], lm: LanguageModel) -> EncodedExamples:
        """Encode both texts of N pairs in the format of `classify`.

        The texts of a pair are the prompt with the chosen response, and the prompt with the
        rejected response. `sequence_labels` are the margins, float32 [N, 1].
        """
        inputs, rows = encode_texts(lm, [(text, None) for text in self._format_texts(examples, lm)])
        # A pair whose texts are equal after truncation has no target.
        truncations = [
            (one.cut + other.cut, 1, int(one.ids == other.ids))
            for one, other in zip(inputs[::2], inputs[1::2])
        ]
        return EncodedExamples.with_targets(
            stack_pairs(rows),
            truncations,
            sequence_labels=np.array([[one.margin] for one in examples], dtype=np.float32),
            pad_id=lm.source_tokenizer.pad_id,
        )

    def prepare(self, rows: RowBatch, rng: RowRandom, vocabulary: Vocabulary) -> Batch:
        """Build a batch of B pairs of a chosen and a rejected text, [B, 2, U].

        U is the length of the longest text. `sequence_labels` are the margins, [B, 1].
        """
        return build_pair_batch(rows)

    def loss_denominators(self, batch: Batch) -> dict[str, int]:
        """Return the divisor of both loss terms, by name: the number of pairs."""
        return dict.fromkeys(("pairs", "center"), batch.num_rows)

    def term_weights(self) -> dict[str, float]:
        """Return the weights of the loss terms, by name: lambda for the squared sums of rewards."""
        return {"center": self.center}

    def loss(self, model: LanguageModule, batch: TensorBatch) -> LossTerms:
        """Compute the pairwise loss in nats, and the squared sum of both rewards of each pair.

        Returns the sum of each over the pairs.
        """
        assert batch.sequence_labels is not None
        inputs = unstack_pairs(batch.inputs)
        hidden, terms = forward_hidden(model, inputs)
        mask = inputs["attention_mask"]
        logits = model.logits(hidden, head="classifier", attention_mask=mask).float()
        chosen, rejected = logits.view(-1, 2).unbind(1)
        loss = -F.logsigmoid(chosen - rejected - batch.sequence_labels[:, 0])
        return {"pairs": loss.sum(), "center": (chosen + rejected).square().sum(), **terms}

    def predict(self, lm: LanguageModel, examples: Sequence[Preference]) -> list[float]:
        """Return the rewards of all texts, two per pair: chosen, then rejected."""
        return [one.score for one in lm.classify(self._format_texts(examples, lm))]

    def compute_metrics(
        self, predictions: list[float], examples: Sequence[Preference], lm: LanguageModel
    ) -> Metrics:
        """Return the accuracy, the mean margin and the mean reward.

        The accuracy is the fraction of pairs in which the chosen response has the higher reward.
        The margin of a pair is the reward of the chosen response minus that of the rejected
        response.
        """
        rewards = np.array(predictions).reshape(-1, 2)
        gain = rewards[:, 0] - rewards[:, 1]
        texts = self._format_texts(examples, lm)
        rows = [
            {"text": text, "rejected": other, "reward": first, "rejected_reward": second}
            for text, other, (first, second) in zip(texts[::2], texts[1::2], rewards.tolist())
        ]
        mistakes = (
            Mistake(one.where, row["text"], "higher", f"lower by {-each:.2g}", abs(float(each)))
            for one, row, each in zip(examples, rows, gain)
            if each <= 0
        )
        values = {
            "accuracy": float((gain > 0).mean()),
            "margin": float(gain.mean()),
            "reward": float(rewards.mean()),
        }
        notes = (english("note.margin_and_reward"),)
        return Metrics(values, notes=notes).with_examples(rows, mistakes)

    def suggest_command(self, run: str, lm: LanguageModel, text: str = "") -> str:
        """Return a `classify` command for the two texts of a validation pair."""
        example = read_prediction(run)
        both = (str(example.get(name, "a text of yours")) for name in ("text", "rejected"))
        texts = [one[:_MAX_TEXT] for one in both]
        return f"classify {run} {' '.join(map(shlex.quote, dict.fromkeys(texts)))}"

    def _format_texts(self, examples: Sequence[Preference], lm: LanguageModel) -> list[str]:
        """Return the input texts of all pairs, two per pair: chosen, then rejected."""
        return [_format_text(lm, *turns) for turns in self.list_pairs(examples)]


def _format_text(lm: LanguageModel, prompt: Turn, response: Turn) -> str:
    """Join a prompt and a response into one text.

    Messages are formatted with the chat template.
    """
    if isinstance(prompt, str) and isinstance(response, str):
        return prompt + response
    return get_chat_template(lm).render(prepend_prompt(prompt, response))
