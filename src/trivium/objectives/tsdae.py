"""TSDAE: a decoder restores a text from the vector of what is left of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import nn

from trivium.data.batch import Batch, RowBatch, length_mask
from trivium.data.encoded import EncodedExamples
from trivium.data.row_order import RowRandom
from trivium.data.schema import Slot
from trivium.errors import RecipeError, SpecError
from trivium.language_model import LanguageModel
from trivium.models import LanguageModule, Transformer, build
from trivium.models.base_model import Spec
from trivium.models.heads import Head
from trivium.models.heads.vocabulary import LMHead
from trivium.models.transformer import TransformerSpec
from trivium.nn import EncoderOutput, SequenceInfo
from trivium.objectives.labelled import next_tokens
from trivium.objectives.row_arrays import left_pack, real_tokens
from trivium.objectives.tensor_batch import LossTerms, TensorBatch
from trivium.objectives.text_pairs import TEXT, TextPair, TextPairs
from trivium.text.inputs import encode_inputs
from trivium.text.vocabulary import Vocabulary


class TSDAE(TextPairs):
    """L = - sum_t log P(y_t | y_1 ... y_(t-1), v), for a text y and the vector v of what is left.

    A share of `deletion` of the tokens is deleted, anew in every epoch, and the encoder reads the
    others; v is the mean, the first or the last of its hidden states, and all that the
    cross-attention of the decoder sees. With five of six tokens deleted:

        row                [CLS] Ada wrote the first program . [SEP]
        input_ids          [CLS] program [SEP]
        decoder_input_ids  [CLS] Ada wrote the first program .
        labels             Ada wrote the first program . [SEP]

    The decoder has the layers of the encoder and its token vectors, and is there in training alone:
    the run saves the encoder, which embeds.

    Source: Wang, Reimers and Gurevych 2021, section 3. Where we differ: v is the mean unless
    `pooling` says "first", which is theirs; tokens are deleted, not words; and the layers of the
    decoder have weights of their own, which start at random, where theirs are the encoder's.
    """

    kind: Literal["tsdae"] = "tsdae"
    fields: ClassVar[Sequence[Slot]] = (TEXT,)
    deletion: float = Field(0.6, ge=0, lt=1, description="share of the tokens that is deleted")

    def heads(self, spec: Spec, labels: Sequence[str] = ()) -> tuple[Head, ...]:
        """Return no head: the head over the vocabulary is the decoder's."""
        self.specs(spec)
        return ()

    def specs(self, spec: Spec) -> tuple[Spec, ...]:
        """Return the specs of the encoder and of the decoder."""
        return spec, self._with_decoder(spec).replace(encoder=None)

    def build(self, spec: Spec, *, seed: int, device: torch.device) -> nn.Module:
        """Return the encoder with a decoder."""
        return build(self._with_decoder(spec), seed=seed, device=device)

    def models(self, module: nn.Module) -> dict[str, LanguageModule]:
        """Return the encoder, which shares its weights with the module."""
        assert isinstance(module, Transformer)
        encoder = build(module.spec.replace(decoder=None, heads=()), device="meta")
        encoder.tokens, encoder.encoder = module.tokens, module.encoder
        return {"": encoder}

    def encode(self, examples: Sequence[TextPair], lm: LanguageModel) -> EncodedExamples:
        """Return every text between its special tokens."""
        texts = [(one.text, None) for one in examples]
        encoded = encode_inputs(lm.source_tokenizer, texts, max_length=lm.max_length)
        sequences = {
            "input_ids": [one.ids for one in encoded],
            "labels": [next_tokens(one) for one in encoded],
        }
        # All tokens but the first are targets.
        truncations = [(one.cut, len(one.ids) - 1 + one.cut, one.cut) for one in encoded]
        return EncodedExamples.with_targets(
            sequences, truncations, pad_id=lm.source_tokenizer.pad_id
        )

    def prepare(self, rows: RowBatch, rng: RowRandom, vocabulary: Vocabulary) -> Batch:
        """Delete tokens: int64 [B, T] -> input_ids [B, S], decoder_input_ids and labels [B, T - 1].

        Special tokens stay, and of a text without any its first token.
        """
        ids, is_token = rows.input_ids, real_tokens(rows)
        assert rows.labels is not None
        stays = rng.uniform(ids.shape[1], 0) >= self.deletion
        stays = is_token & (stays | vocabulary.is_special[ids])
        stays[:, :1] |= ~stays.any(axis=1, keepdims=True)
        input_ids, lengths = left_pack(ids, stays, vocabulary.pad_id or 0)
        return Batch(
            input_ids=input_ids,
            attention_mask=length_mask(lengths, input_ids.shape[1]),
            decoder_input_ids=ids[:, :-1],
            labels=rows.labels[:, :-1],
        )

    def loss(self, model: LanguageModule, batch: TensorBatch) -> LossTerms:
        """Return the nats of all tokens except the first of each text, summed."""
        assert isinstance(model, Transformer)
        assert model.decoder is not None
        inputs = dict(batch.inputs)
        shifted, mask = inputs.pop("decoder_input_ids"), inputs.get("attention_mask")
        vectors = self.pooled(model.encode(**inputs), mask)
        context = SequenceInfo.of_length(
            shifted.shape[1],
            shifted.device,
            causal=True,
            gather_positions=batch.label_positions,
            encoder=EncoderOutput(vectors[:, None]),
        )
        hidden, _ = model.decoder(model.tokens(shifted), context)
        return {"loss": model.lm_loss(hidden, batch.targets)}

    def _with_decoder(self, spec: Spec) -> TransformerSpec:
        if (
            not isinstance(spec, TransformerSpec)
            or spec.family != "encoder-only"
            or spec.has_aux_loss
        ):
            raise RecipeError(
                f'objective.kind = "{self.kind}" is for Transformer encoders such as bert-mini.'
            )
        try:
            return spec.replace(decoder=spec.encoder, heads=(LMHead(tied=True),))
        except SpecError as error:
            raise RecipeError(f'objective.kind = "{self.kind}": {error}') from None
