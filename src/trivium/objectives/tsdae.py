"""TSDAE: a decoder reconstructs a text from the embedding of a copy with deleted tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import nn

from trivium.data.batch import Batch, RowBatch, make_length_mask
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
from trivium.objectives.labelled import next_token_labels
from trivium.objectives.row_arrays import left_pack, token_mask
from trivium.objectives.tensor_batch import LossTerms, TensorBatch
from trivium.objectives.text_pairs import TEXT, TextPair, TextPairs
from trivium.text.inputs import encode_inputs
from trivium.text.vocabulary import Vocabulary


class TSDAE(TextPairs):
    """Unsupervised training of text embeddings with a denoising autoencoder (TSDAE).

    L = - sum_t log P(y_t | y_1 ... y_(t-1), v)

    y is a text. A fraction `deletion` of its tokens is deleted, and the encoder reads the remaining
    tokens. The embedding v is the mean, the first or the last of the encoder's hidden states. It is
    the only vector that the decoder's cross-attention can attend to. The deleted tokens differ from
    epoch to epoch. With five of six tokens deleted:

        row                [CLS] Ada wrote the first program . [SEP]
        input_ids          [CLS] program [SEP]
        decoder_input_ids  [CLS] Ada wrote the first program .
        labels             Ada wrote the first program . [SEP]

    The decoder has as many layers as the encoder, and shares its token embeddings. It is only used
    in training. The run saves only the encoder, which embeds texts.

    Source: Wang, Reimers and Gurevych 2021, section 3. There are three differences. By default v is
    the mean; `pooling` = "first" is the choice of the paper. Tokens are deleted, not words. The
    layers of the decoder have their own random initial weights, instead of sharing the encoder's.
    """

    kind: Literal["tsdae"] = "tsdae"
    fields: ClassVar[Sequence[Slot]] = (TEXT,)
    deletion: float = Field(0.6, ge=0, lt=1, description="fraction of tokens to delete")

    def heads(self, spec: Spec, labels: Sequence[str] = ()) -> tuple[Head, ...]:
        """Return no heads, because the LM head belongs to the decoder.

        Raises RecipeError if the model is not a Transformer encoder.
        """
        self.model_specs(spec)
        return ()

    def model_specs(self, spec: Spec) -> tuple[Spec, ...]:
        """Return the specs of the encoder and of the decoder."""
        return spec, self._build_autoencoder_spec(spec).replace(encoder=None)

    def build(self, spec: Spec, *, seed: int, device: torch.device) -> nn.Module:
        """Build the encoder together with a decoder, both with random weights."""
        return build(self._build_autoencoder_spec(spec), seed=seed, device=device)

    def models_to_save(self, module: nn.Module) -> dict[str, LanguageModule]:
        """Return the model to save, under the key "": the encoder without the decoder.

        The encoder shares its weights with `module`.
        """
        assert isinstance(module, Transformer)
        encoder = build(module.spec.replace(decoder=None, heads=()), device="meta")
        encoder.tokens, encoder.encoder = module.tokens, module.encoder
        return {"": encoder}

    def encode(self, examples: Sequence[TextPair], lm: LanguageModel) -> EncodedExamples:
        """Encode every text as token ids, including special tokens, and as next-token labels."""
        texts = [(one.text, None) for one in examples]
        encoded = encode_inputs(lm.source_tokenizer, texts, max_length=lm.max_length)
        sequences = {
            "input_ids": [one.ids for one in encoded],
            "labels": [next_token_labels(one) for one in encoded],
        }
        # All tokens except the first are targets.
        truncations = [(one.cut, len(one.ids) - 1 + one.cut, one.cut) for one in encoded]
        return EncodedExamples.with_targets(
            sequences, truncations, pad_id=lm.source_tokenizer.pad_id
        )

    def prepare(self, rows: RowBatch, rng: RowRandom, vocabulary: Vocabulary) -> Batch:
        """Delete random tokens of rows [B, T] from the input of the encoder.

        Special tokens are never deleted. If no token would remain, the first token is kept.

        Returns:
            A batch with input_ids [B, S], decoder_input_ids [B, T - 1] and labels [B, T - 1]. S is
            the maximum number of remaining tokens per row.
        """
        ids, is_token = rows.input_ids, token_mask(rows)
        assert rows.labels is not None
        keep = rng.uniform(ids.shape[1], 0) >= self.deletion
        keep = is_token & (keep | vocabulary.is_special[ids])
        keep[:, :1] |= ~keep.any(axis=1, keepdims=True)
        input_ids, lengths = left_pack(ids, keep, vocabulary.pad_id or 0)
        return Batch(
            input_ids=input_ids,
            attention_mask=make_length_mask(lengths, input_ids.shape[1]),
            decoder_input_ids=ids[:, :-1],
            labels=rows.labels[:, :-1],
        )

    def loss(self, model: LanguageModule, batch: TensorBatch) -> LossTerms:
        """Compute the summed cross-entropy of the reconstructed tokens, in nats."""
        assert isinstance(model, Transformer)
        assert model.decoder is not None
        inputs = dict(batch.inputs)
        shifted, mask = inputs.pop("decoder_input_ids"), inputs.get("attention_mask")
        vectors = self.pool(model.encode(**inputs), mask)
        context = SequenceInfo.of_length(
            shifted.shape[1],
            shifted.device,
            causal=True,
            gather_positions=batch.label_positions,
            encoder=EncoderOutput(vectors[:, None]),
        )
        hidden, _ = model.decoder(model.tokens(shifted), context)
        return {"loss": model.lm_loss(hidden, batch.targets)}

    def _build_autoencoder_spec(self, spec: Spec) -> TransformerSpec:
        """Return the spec of the trained model: encoder, decoder with the same layers, LM head.

        Raises RecipeError if the model is not a Transformer encoder, or does not support a decoder.
        """
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
