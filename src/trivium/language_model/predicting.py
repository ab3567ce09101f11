"""Return predictions: logits, attention weights, fills of masks, and log-probabilities."""

from __future__ import annotations

from typing import Any, Unpack

import torch
from torch import Tensor

from trivium.inference.attention_weights import AttentionWeights, attention_weights
from trivium.inference.fill_mask import MaskFill, fill_blanks, fill_gaps, fill_masks
from trivium.inference.model_inputs import ExtraInputs, Numbers, model_inputs
from trivium.inference.score import score_text
from trivium.inference.text_model import TextModel


class PredictionMixin(TextModel):
    """The methods that return the predictions of a pretrained model for text or ids."""

    @torch.inference_mode()
    def logits(
        self,
        input_ids: Numbers,
        attention_mask: Numbers | None = None,
        *,
        head: str | None = None,
        **inputs: Unpack[ExtraInputs],
    ) -> Tensor:
        """Return the float32 logits of every position: int64 [B, T] -> [B, T, V].

        Heads over labels return [B, L] for texts, or [B, T, L] for tokens. In an encoder-decoder,
        T is the number of `decoder_input_ids`.

        Args:
            input_ids: a tensor, an array or a list of lists.
            attention_mask: [B, T], 0 at padding.
            head: the kind of head. The default is the vocabulary head, else the first head.
            **inputs: further inputs, each [B, T]: `token_type_ids` are 0 in sentence A and 1 in
                sentence B; `position_ids` replace the usual positions; `decoder_input_ids` and
                `decoder_attention_mask` are for an encoder-decoder.

        Raises:
            SpecError: a shape is not [B, T], an id is out of range, or an input is missing or does
                not fit the model's family.
        """
        self.require("logits")
        tensors = model_inputs(
            self.module, input_ids=input_ids, attention_mask=attention_mask, **inputs
        )
        decodes = "decoder_input_ids" in tensors
        mask = tensors.get("decoder_attention_mask" if decodes else "attention_mask")
        logits = self.module.logits(self.module(**tensors), head=head, attention_mask=mask).float()
        if logits.ndim == 2 and logits.shape[1] == 1:  # regression: undo standardization
            mean, deviation = self.settings.label_scale
            logits = mean + deviation * logits
        return logits

    def attention_weights(
        self,
        input_ids: Numbers,
        attention_mask: Numbers | None = None,
        **inputs: Unpack[ExtraInputs],
    ) -> AttentionWeights:
        """Return the attention weights of every layer and head, for the same inputs as `logits`."""
        tensors = model_inputs(
            self.module, input_ids=input_ids, attention_mask=attention_mask, **inputs
        )
        return attention_weights(self.module, **tensors)

    def fill_mask(self, text: str, top_k: int = 5) -> list[Any]:
        """Return the `top_k` most probable fills of the mask in a text, best first.

        A mask is written as [MASK], as <mask>, or as the tokenizer's own mask token. An encoder
        predicts one token per mask. An encoder-decoder fills all gaps together by beam search, each
        with any number of words; the gaps of T5 may also be written <extra_id_0>, <extra_id_1>, ...
        Its scores are probabilities per token (geometric means), whose sum may exceed 1. A decoder
        (GLM) fills one gap after another with the most probable tokens and returns a single fill.

        Returns:
            A list of `MaskFill(sequence, token, score)`. An encoder returns one list per mask if
            the text has several masks.

        Raises:
            TriviumError: the text has no mask, or the model cannot fill masks.
            SpecError: the text is too long for an encoder-decoder.
        """
        self.require("fill_mask")
        if self.spec.family == "encoder-decoder":
            return fill_gaps(self, text, top_k=top_k)
        if self.spec.family == "decoder-only":
            return [fill_blanks(self, text)]
        fills: list[list[MaskFill]] = fill_masks(self, text, top_k=top_k)
        return fills[0] if len(fills) == 1 else fills

    def score(self, text: str, context: str | None = None) -> float:
        """Return the log-probability of a text in nats.

        For a decoder this is the sum of log p(token | tokens before). For an encoder it is the
        pseudo-log-likelihood, the sum of log p(token | all other tokens) (Salazar et al. 2020).

        Args:
            text: the text to score.
            context: the text before `text`. Nothing is inserted between the two: `context + text`
                is tokenized as one string, and a token that spans both is scored with the text. An
                encoder-decoder needs a context, which its encoder reads; the two are then tokenized
                separately. A context that is too long for the model is left-truncated.
        """
        self.require("score")
        return score_text(self, text, context).total
