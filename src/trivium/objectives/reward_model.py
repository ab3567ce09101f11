"""A reward model: a number for a text, learned from pairs of which one is preferred."""

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
from trivium.objectives.chat import chat_template
from trivium.objectives.conversations import Turn, with_prompt
from trivium.objectives.labelled import column_key, encode_texts
from trivium.objectives.preference_pairs import (
    Preference,
    PreferencePairs,
    pair_batch,
    pair_up,
    unstack_pairs,
)
from trivium.objectives.task_heads import ReadsStates, classifier_head, default_pooling
from trivium.objectives.task_metrics import Metrics, Mistake, first_prediction
from trivium.objectives.tensor_batch import LossTerms, TensorBatch, read
from trivium.text.vocabulary import Vocabulary

MARGIN = Fields("margin?", ("margin",))
_SHOWN_TEXT = 500  # characters of a text in a command


class Reward(ReadsStates, PreferencePairs):
    """L = - log sigmoid(r(x, y+) - r(x, y-) - m) + lambda (r(x, y+) + r(x, y-))^2.

    r is a classifier of one number. It reads a prompt with a response as one text, messages as the
    chat template writes them:

        chosen    [CLS] who wrote it ? Ada did . [SEP]    r =  1.3
        rejected  [CLS] who wrote it ? go away . [SEP]    r = -0.8

    m is the margin of a pair, 0 without one; lambda draws the mean of all rewards, which the first
    term leaves open, to 0.

    Source: Bradley and Terry 1952; Ouyang et al. 2022, equation 1; Touvron et al. 2023 (Llama 2),
    equation 2, for m; Eisenstein et al. 2023, section 5.1, for lambda.
    """

    kind: Literal["reward"] = "reward"
    measures_cut_answers: ClassVar[bool] = True
    fields: ClassVar[Sequence[Slot]] = (*PreferencePairs.fields, MARGIN)
    margin_field: str | None = column_key(
        "column of a number by which the rewards differ at least", MARGIN
    )
    center: float = Field(
        0.0, ge=0, description="weight of the squared sum of both rewards, such as 0.01"
    )
    pooling: Pooling | None = Field(
        None,
        description="vector that is read; default: first, of decoders and XLNet last, of ELMo mean",
    )

    def example(self, record: Record) -> Preference:
        """Return a pair with its margin."""
        one = super().example(record)
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

    def settings(self, settings: Settings, examples: Sequence[Preference]) -> Settings:
        """Return settings with one label, a number."""
        settings = settings.with_labels(("reward",), "regression")
        return settings.with_task("classification", pairs=False).with_task("reward")

    def heads(self, spec: Spec, labels: Sequence[str] = ()) -> tuple[Head, ...]:
        """Return a classifier that gives one number."""
        self.require_fit(spec)
        return (classifier_head(spec, 1, self.pooling or default_pooling(spec)),)

    def encode(self, examples: Sequence[Preference], lm: LanguageModel) -> EncodedExamples:
        """Return chosen and rejected texts as `classify` reads them, with the margins [N, 1]."""
        inputs, rows = encode_texts(lm, [(text, None) for text in self._texts(examples, lm)])
        # What is learned of a pair is the order of its texts, which must differ where they are cut.
        truncations = [
            (one.cut + other.cut, 1, int(one.ids == other.ids))
            for one, other in zip(inputs[::2], inputs[1::2])
        ]
        return EncodedExamples.with_targets(
            pair_up(rows),
            truncations,
            sequence_labels=np.array([[one.margin] for one in examples], dtype=np.float32),
            pad_id=lm.source_tokenizer.pad_id,
        )

    def prepare(self, rows: RowBatch, rng: RowRandom, vocabulary: Vocabulary) -> Batch:
        """Return chosen and rejected texts [B, 2, U]; `sequence_labels` are the margins [B, 1]."""
        return pair_batch(rows)

    def label_counts(self, batch: Batch) -> dict[str, int]:
        """Return the number of pairs, for both terms."""
        return dict.fromkeys(("pairs", "center"), batch.num_rows)

    def term_weights(self) -> dict[str, float]:
        """Return lambda, the weight of the squared sum of both rewards."""
        return {"center": self.center}

    def loss(self, model: LanguageModule, batch: TensorBatch) -> LossTerms:
        """Return the nats of the pairs, and the squared sums of their rewards."""
        assert batch.sequence_labels is not None
        inputs = unstack_pairs(batch.inputs)
        hidden, terms = read(model, inputs)
        mask = inputs["attention_mask"]
        logits = model.logits(hidden, head="classifier", attention_mask=mask).float()
        chosen, rejected = logits.view(-1, 2).unbind(1)
        loss = -F.logsigmoid(chosen - rejected - batch.sequence_labels[:, 0])
        return {"pairs": loss.sum(), "center": (chosen + rejected).square().sum(), **terms}

    def predict(self, lm: LanguageModel, examples: Sequence[Preference]) -> list[float]:
        """Return the rewards of the chosen and the rejected text of every example, in turn."""
        return [one.score for one in lm.classify(self._texts(examples, lm))]

    def compute_metrics(
        self, answers: list[float], examples: Sequence[Preference], lm: LanguageModel
    ) -> Metrics:
        """Return the accuracy: the share of pairs whose chosen response has the higher reward."""
        rewards = np.array(answers).reshape(-1, 2)
        gain = rewards[:, 0] - rewards[:, 1]
        texts = self._texts(examples, lm)
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

    def try_it(self, run: str, lm: LanguageModel, text: str = "") -> str:
        """Return `classify` with a held-out pair."""
        example = first_prediction(run)
        both = (str(example.get(name, "a text of yours")) for name in ("text", "rejected"))
        texts = [one[:_SHOWN_TEXT] for one in both]
        return f"classify {run} {' '.join(map(shlex.quote, dict.fromkeys(texts)))}"

    def _texts(self, examples: Sequence[Preference], lm: LanguageModel) -> list[str]:
        """Return the chosen and the rejected text of every example, one after the other."""
        return [_text(lm, *turns) for turns in self.turns(examples)]


def _text(lm: LanguageModel, prompt: Turn, response: Turn) -> str:
    if isinstance(prompt, str) and isinstance(response, str):
        return prompt + response
    return chat_template(lm).render(with_prompt(prompt, response))
