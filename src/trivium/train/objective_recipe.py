"""What a recipe says of objectives: one, or several that share the rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from trivium.errors import RecipeError
from trivium.train.section import Positive, Section, Share

ObjectiveKind = Literal[
    "masked",
    "masked+nsp",
    "masked+order",
    "replaced-token",
    "causal",
    "prefix-lm",
    "bidirectional-lm",
    "span-corruption",
    "denoising",
]

_MASKED = ("masked", "masked+nsp", "masked+order", "replaced-token")
# Keys that say nothing to other kinds.
_KEYS_OF: dict[str, tuple[str, ...]] = {
    "max_span": _MASKED,
    "span_lengths": _MASKED,
    "generator_size": ("replaced-token",),
    "discriminator_weight": ("replaced-token",),
    "context": ("causal",),
    "mask_tokens": ("denoising",),
    "delete_tokens": ("denoising",),
    "rotate_documents": ("denoising",),
}


class QuestionSection(Section):
    """What is asked of the model: a kind of objective and its numbers."""

    kind: ObjectiveKind | None = None
    probability: Share | None = None
    mask_share: Share | None = None
    random_share: Share | None = None
    whole_words: bool = False
    mean_span: Annotated[float, Field(ge=1.0, le=64.0)] = 3.0
    permute_sentences: bool = True
    max_span: Positive = 1
    span_lengths: Literal["harmonic", "geometric"] = "harmonic"
    generator_size: Annotated[float, Field(gt=0.0, le=1.0)] = 0.25
    discriminator_weight: Annotated[float, Field(gt=0.0)] = 50.0
    context: Positive | None = None
    mask_tokens: Share = 0.0
    delete_tokens: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    rotate_documents: Share = 0.0

    @model_serializer(mode="wrap")
    def _written(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """The keys that say something to the kind."""
        others = {name for name, kinds in _KEYS_OF.items() if self.kind not in (None, *kinds)}
        return {key: value for key, value in write(self).items() if key not in others}

    def check_keys(self) -> None:
        """Raise RecipeError where a key is set that says nothing to the kind."""
        for name, kinds in _KEYS_OF.items():
            default = type(self).model_fields[name].get_default()
            if self.kind not in kinds and getattr(self, name) != default:
                raise RecipeError(
                    f"objective.{name} belongs to objective.kind = {_either(kinds)}, not to "
                    f'"{self.kind}".'
                )


class MixedQuestionSection(QuestionSection):
    """One of several objectives: the keys of `[objective]`, and its share of the rows."""

    share: Annotated[float, Field(gt=0)] = 1.0


class ObjectiveSection(QuestionSection):
    """What is asked of the model.

    - "masked", and with sentence pairs "masked+nsp" (BERT) and "masked+order" (ALBERT), are for
      encoders. Of the tokens `probability` (0.15) is chosen, of these `mask_share` (0.8) masked and
      `random_share` (0.1) replaced; with `whole_words` all pieces of a word, with `max_span` up to
      so many tokens in a row, whose `span_lengths` are "harmonic" (ALBERT: 3) or "geometric"
      (SpanBERT: 10).
    - "replaced-token" (ELECTRA) is for encoders too: a generator `generator_size` as wide fills the
      masks (`mask_share` 1, `random_share` 0), and the model, whose loss weighs
      `discriminator_weight`, tells which tokens are not the text's. The run's `generator/` is a
      model that fills masks.
    - "causal" is for decoders; with `context` a token is told from at most so many before it.
      "prefix-lm" tells the rest of a row from its beginning, and is for decoders and for models
      with an encoder and a decoder. "bidirectional-lm" is for RNNs that read two ways.
    - "span-corruption" (T5) and "denoising" (BART) are for models with an encoder and a decoder:
      `probability` (0.15; denoising 0.3) of the tokens is hidden, `mean_span` together. Denoising
      may `permute_sentences`, mask tokens one by one (`mask_tokens`), leave some out
      (`delete_tokens`) and begin documents elsewhere (`rotate_documents`): shares from 0 to 1.

    Several objectives stand in `[[objective.mix]]`, in place of all other keys, each with its
    `share` of the rows. The loss is the mean over the labels of all, so that one that asks for more
    tokens weighs more.
    """

    mix: Annotated[tuple[MixedQuestionSection, ...], Field(min_length=1)] | None = None

    @model_validator(mode="after")
    def _one_of_two(self) -> Self:
        if self.mix is not None and (others := sorted(self.model_fields_set - {"mix"})):
            raise ValueError(
                f"give either {', '.join(others)} or [[objective.mix]], whose tables have these "
                "keys themselves"
            )
        return self

    @model_serializer(mode="wrap")
    def _written(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """The mix alone, or the keys of the one objective."""
        if self.mix is not None:
            return {"mix": write(self)["mix"]}
        return QuestionSection._written(self, write)

    @property
    def questions(self) -> tuple[MixedQuestionSection, ...]:
        """The objectives with their shares; one where there is no mix."""
        if self.mix is not None:
            return self.mix
        told = {name: getattr(self, name) for name in QuestionSection.model_fields}
        return (MixedQuestionSection.model_construct(**told, share=1.0),)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds there are, each once."""
        return tuple(dict.fromkeys(one.kind for one in self.questions if one.kind is not None))


def _either(names: Sequence[str]) -> str:
    *others, last = (f'"{name}"' for name in names)
    return f"{', '.join(others)} or {last}" if others else last
