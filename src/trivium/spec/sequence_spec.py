"""Specs of the models before the Transformer: `RNNSpec` and `NGramSpec`."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field

from trivium.errors import SpecError
from trivium.spec.base_spec import Spec, projecting_head_input
from trivium.spec.characters import CharacterCNN
from trivium.spec.heads import Head, HeadInput
from trivium.spec.heads.scalar_mix import ScalarMix
from trivium.spec.heads.vocabulary import LMHead
from trivium.spec.norms import LayerNorm
from trivium.spec.part import Count, DropoutRate, NumLayers, Positive

Cell = Literal["elman", "elman-relu", "elman-logistic", "lstm", "gru"]


class RNNSpec(Spec):
    """A recurrent network: Elman 1990, LSTM (Hochreiter and Schmidhuber 1997), GRU (Cho 2014).

    Cells of Elman's network have tanh; "elman-relu" and "elman-logistic" (as Mikolov et al. 2010)
    have these functions in its place.

    `direction` "forward" reads from left to right: a language model. "both" makes every layer
    bidirectional (Schuster and Paliwal 1997): an encoder. "two-way" is a forward and a backward
    language model that share token vectors and softmax (ELMo, Peters et al. 2018); with the heads
    of a task in place of the softmax it is an encoder, whose states are those of both models, of
    the last layer or, with a head "scalar-mix", of all layers.

    Token vectors are `d_model` wide and cells `d_hidden`; hidden states of another width than
    `d_model` are multiplied by a matrix to it. With `d_projection` those of an LSTM are projected
    to it before anything reads them (Sak et al. 2014). With `connections` "residual" every layer
    but the first adds its input to its output. Cells read token vectors times `scale`: tied token
    vectors start small, and cells learn slowly from small inputs. With `characters` token vectors
    are made from the characters of a token. Dropout is on all that is not recurrent (Zaremba et
    al. 2014): token vectors, between the layers, hidden states.
    """

    kind: Literal["rnn"] = "rnn"
    cell: Cell
    d_hidden: Count
    num_layers: NumLayers
    d_projection: Count | None = None
    direction: Literal["forward", "both", "two-way"] = "forward"
    connections: Literal["plain", "residual"] = "plain"
    characters: CharacterCNN | None = None
    scale: Positive = 1.0
    dropout: DropoutRate = 0.0

    def check(self) -> None:
        """Raise SpecError for heads or a projection that do not fit the network."""
        super().check()
        for head in self.heads:
            if (reason := self._refusal(head)) is not None:
                raise SpecError(
                    f'an RNN of direction "{self.direction}" has no {head.kind} head{reason}.'
                )
            if self.characters and getattr(head, "tied", False):
                raise SpecError(
                    f"characters: the {head.kind} head cannot be tied to token vectors that are "
                    "made from characters: set its tied = false."
                )
        if self.d_projection and (self.cell != "lstm" or self.d_projection >= self.d_hidden):
            raise SpecError(
                f"d_projection = {self.d_projection} is for an LSTM of more cells (d_hidden); this "
                f'is "{self.cell}" with {self.d_hidden}: leave it out.'
            )

    def _refusal(self, head: Head) -> str | None:
        """Why a head is not for this direction."""
        is_lm = isinstance(head, LMHead)
        if self.direction == "both":
            return ': it is an encoder; take an mlm head, or direction "forward"' if is_lm else None
        if head.reads_both_sides:
            return ': it predicts from one side; take an lm head, or direction "both"'
        if self.two_way and is_lm and len(self.heads) > 1:
            return " beside others: it has that head alone, or those of tasks"
        return None

    @property
    def family(self) -> Literal["encoder-only", "decoder-only"]:
        """As of a Transformer; a two-way language model generates by its forward half."""
        encodes = self.direction == "both" or (self.two_way and not _is_lm(self.heads))
        return "encoder-only" if encodes else "decoder-only"

    @property
    def two_way(self) -> bool:
        """Whether it is a forward and a backward model (ELMo)."""
        return self.direction == "two-way"

    @property
    def carries(self) -> bool:
        """Where it reads from left to right alone."""
        return self.direction == "forward"

    def with_heads(self, heads: tuple[Head, ...]) -> Self:
        """The same model with these heads; those of tasks read its mix of layers."""
        if self.scalar_mix is not None and not _is_lm(heads):
            heads = (*heads, self.scalar_mix)
        return super().with_heads(heads)

    @property
    def scalar_mix(self) -> ScalarMix | None:
        """Of two directions, where all layers are as wide as token vectors."""
        fits = self.two_way and self.d_state == self.d_model
        return ScalarMix(num_layers=self.num_layers + 1) if fits else None

    @property
    def d_state(self) -> int:
        """Width of a layer's output at a position."""
        return (self.d_projection or self.d_hidden) * (2 if self.direction == "both" else 1)

    def kept_bytes(self, length: int, item: int, *, on_cpu: bool, recompute: bool = False) -> int:
        """Gates before and after their functions, states and outputs: at most ten a cell."""
        directions = 1 if self.direction == "forward" else 2
        numbers = 10 * self.d_hidden * self.num_layers * directions + 6 * self.d_model * directions
        if (part := self.characters) is not None:  # of a token that no other position has
            numbers += part.max_characters * part.d_character
            numbers += (4 + 6 * part.num_highways) * sum(part.filters)
        return 4 * numbers

    @property
    def head_input(self) -> HeadInput:
        """What the heads are built with."""
        reads_both = self.two_way and self.family == "encoder-only"
        return HeadInput(
            vocab_size=self.vocab_size,
            d_model=self.d_model * (2 if reads_both else 1),
            d_embedding=self.d_model,
            norm=LayerNorm(),
            dropout=self.dropout,
        )


def _is_lm(heads: tuple[Head, ...]) -> bool:
    return any(isinstance(head, LMHead) for head in heads)


class NGramSpec(Spec):
    """The feed-forward language model of Bengio et al. 2003: n-1 tokens predict the next.

        y = b + W x + U tanh(d + H x),   x = (C(w_t-1), ..., C(w_t-n+1))

    `order` is n, `d_model` the width m of a token's vector in C, `d_hidden` that of the tanh
    layer, h. `connections` "direct" has the matrix W from token vectors to the vocabulary, "hidden"
    leaves it out. A tied LM head reads the vocabulary matrix from C, through a matrix to width m.
    Positions before the text have one trained vector (the paper pads with a token).
    """

    takes_heads: ClassVar[bool] = False  # it sees a few tokens of a text
    kind: Literal["n-gram"] = "n-gram"
    order: Annotated[int, Field(ge=2)]
    d_hidden: Count
    connections: Literal["hidden", "direct"] = "hidden"
    dropout: DropoutRate = 0.0

    def check(self) -> None:
        """Raise SpecError for any head but an LM head."""
        super().check()
        for head in self.heads:
            if not isinstance(head, LMHead):
                raise SpecError(f"an n-gram model has no {head.kind} head: it has an lm head only.")

    @property
    def d_context(self) -> int:
        """Width of the vectors of a whole context, (n-1) m."""
        return (self.order - 1) * self.d_model

    @property
    def d_output(self) -> int:
        """Width of the head's input: the tanh layer and, with direct connections, x."""
        return self.d_hidden + (self.d_context if self.connections == "direct" else 0)

    def kept_bytes(self, length: int, item: int, *, on_cpu: bool, recompute: bool = False) -> int:
        """Contexts, the tanh layer and the head's input."""
        return 4 * (3 * self.d_context + 3 * self.d_hidden + 2 * self.d_output)

    @property
    def head_input(self) -> HeadInput:
        """What the heads are built with."""
        return projecting_head_input(self, self.d_output, self.dropout)
