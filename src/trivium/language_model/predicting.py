"""Read a language model's predictions: logits, attention weights, masks, probabilities."""

from __future__ import annotations

from typing import Any, Unpack

import torch
from torch import Tensor

from trivium.inference.attention_weights import AttentionWeights, attention_weights
from trivium.inference.fill_mask import MaskFill, fill_blanks, fill_gaps, fill_masks
from trivium.inference.model_inputs import MoreInputs, Numbers, model_inputs
from trivium.inference.score import score_text
from trivium.inference.text_model import TextModel


class PredictionMixin(TextModel):
    """The methods that read what a pretrained model predicts for given text or ids."""

    @torch.inference_mode()
    def logits(
        self,
        input_ids: Numbers,
        attention_mask: Numbers | None = None,
        *,
        head: str | None = None,
        **inputs: Unpack[MoreInputs],
    ) -> Tensor:
        """Float32 logits of every position: int64 [B, T] -> [B, T, V].

        Heads over labels give [B, L] for a text or [B, T, L] for tokens. Of an encoder-decoder T
        are the positions of `decoder_input_ids`.

        Args:
            input_ids: tensor, array or list of lists.
            attention_mask: [B, T], nonzero where a token is real.
            head: the kind of head; None: that over the vocabulary, else the first.
            **inputs: each [B, T]: `token_type_ids`, sentence A (0) or B (1); `position_ids` of
                `input_ids`, else counted as the model's positions say; `decoder_input_ids` of an
                encoder-decoder, and `decoder_attention_mask`.

        Raises:
            SpecError: a shape that is not [B, T], ids out of range, or an input that is missing or
                does not fit the model's family.
        """
        self.require("logits")
        tensors = model_inputs(
            self.module, input_ids=input_ids, attention_mask=attention_mask, **inputs
        )
        decodes = "decoder_input_ids" in tensors
        mask = tensors.get("decoder_attention_mask" if decodes else "attention_mask")
        logits = self.module.logits(self.module(**tensors), head=head, attention_mask=mask).float()
        if logits.ndim == 2 and logits.shape[1] == 1:  # a regression, in the user's units
            mean, deviation = self.settings.label_scale
            logits = mean + deviation * logits
        return logits

    def attention_weights(
        self,
        input_ids: Numbers,
        attention_mask: Numbers | None = None,
        **inputs: Unpack[MoreInputs],
    ) -> AttentionWeights:
        """The attention weights of every layer and head; arguments as of `logits`."""
        tensors = model_inputs(
            self.module, input_ids=input_ids, attention_mask=attention_mask, **inputs
        )
        return attention_weights(self.module, **tensors)

    def fill_mask(self, text: str, top_k: int = 5) -> list[Any]:
        """The most probable fills of the mask in a text, best first, at most `top_k`.

        A mask is written [MASK], <mask>, or as the tokenizer has it. An encoder predicts one token
        per mask. An encoder-decoder fills all gaps together, each with any number of words, by
        beam search; T5's gaps may also be written <extra_id_0>, <extra_id_1>, ... Its scores are
        probabilities per token (geometric means), whose sum may exceed 1. A decoder (GLM) fills
        one gap after another with the most probable tokens: one fill of all of them.

        Returns:
            A list of `MaskFill(sequence, token, score)`; of an encoder, for a text with several
            masks, one such list per mask.

        Raises:
            TriviumError: no mask in the text, or a model that does not fill masks.
            SpecError: of an encoder-decoder, a text longer than it reads.
        """
        self.require("fill_mask")
        if self.spec.family == "encoder-decoder":
            return fill_gaps(self, text, top_k=top_k)
        if self.spec.family == "decoder-only":
            return [fill_blanks(self, text)]
        fills: list[list[MaskFill]] = fill_masks(self, text, top_k=top_k)
        return fills[0] if len(fills) == 1 else fills

    def score(self, text: str, context: str | None = None) -> float:
        """Log-probability of a text in nats.

        Of a decoder the sum of log p(token | tokens before), of an encoder the
        pseudo-log-likelihood, the sum of log p(token | all others) (Salazar et al. 2020).

        Args:
            text: what is scored.
            context: what the text continues; an encoder-decoder reads it with its encoder, and
                needs it. The start of one that is too long for the model is cut.
        """
        self.require("score")
        return score_text(self, text, context).total
