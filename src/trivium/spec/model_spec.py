"""`ModelSpec`: a Transformer in one value, and the facts that follow from it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, Self

from pydantic import SerializeAsAny

from trivium.errors import SpecError
from trivium.spec.base_spec import Spec
from trivium.spec.heads import HeadInput
from trivium.spec.heads.vocabulary import MLMHead
from trivium.spec.initializations import Initialization
from trivium.spec.initializations.normal import Normal
from trivium.spec.norms import DeviationNorm, RMSNorm
from trivium.spec.part import Count
from trivium.spec.positions import AbsolutePositions
from trivium.spec.positions.learned import Learned
from trivium.spec.positions.relative_bias import RelativeBias
from trivium.spec.positions.rotary import Rotary
from trivium.spec.positions.sinusoidal import Sinusoidal
from trivium.spec.stack import Embedding, Stack


class ModelSpec(Spec):
    """A Transformer. The slots `encoder` and `decoder` decide the family and the masks.

    With both, they share one token table, unless `source_vocab_size` gives the encoder a
    vocabulary of its own.
    """

    kind: Literal["transformer"] = "transformer"
    source_vocab_size: Count | None = None
    embedding: Embedding
    encoder: Stack | None = None
    decoder: Stack | None = None
    initialization: SerializeAsAny[Initialization] = Normal()

    def check(self) -> None:
        """Raise SpecError for stacks, positions or an initialization that do not fit the model."""
        super().check()
        self._check_stacks()
        self._check_late_positions()
        self._check_initialization()

    def _check_stacks(self) -> None:
        if self.encoder is None and self.decoder is None:
            raise SpecError("a ModelSpec needs an encoder, a decoder, or both; given: neither.")
        if self.source_vocab_size is not None and not (self.encoder and self.decoder):
            raise SpecError(
                "source_vocab_size is for a model with an encoder and a decoder: leave it out."
            )
        if self.encoder and self.decoder and not self.decoder.block.crosses:
            block = self.decoder.block.kind
            raise SpecError(f'decoder.block: "{block}" cannot attend to an encoder.')
        for mixer in self.encoder.mixers if self.encoder else ():
            if not mixer.encodes:
                raise SpecError(f'encoder.mixer: "{mixer.kind}" reads the left side alone.')
        for mixer in self.decoder.mixers if self.decoder else ():
            if not mixer.decodes:
                raise SpecError(f'decoder.mixer: "{mixer.kind}" reads both sides of a token.')
            if self.encoder and mixer.cross is None:
                raise SpecError(f'decoder.mixer: "{mixer.kind}" cannot attend to an encoder.')

    def _check_late_positions(self) -> None:
        stack = self.encoder
        if self.late_positions and (
            self.family != "encoder-only"
            or self.query_stream
            or stack is None
            or "before" in stack.norms
            or stack.mixers[-1].kind != "attention"
        ):
            raise SpecError(
                'heads: late_positions of "mlm" are for an encoder alone, without a query stream, '
                'whose last layer is "attention" without a norm before it.'
            )

    def _check_initialization(self) -> None:
        match self.initialization.attention:
            case "position_offsets" if not self.allows_position_offsets:
                needs = "learned positions, or rotary ones in attention with biases"
            case "copy_heads" if not self.allows_copy_heads:
                needs = "an encoder and a decoder, with learned positions or relative biases"
            case "diagonal" if not self.allows_diagonal:
                needs = "an encoder and a decoder, with sinusoidal positions"
            case _:
                return
        raise SpecError(
            f'initialization.attention="{self.initialization.attention}" needs {needs}: '
            'use "random" here.'
        )

    @property
    def allows_position_offsets(self) -> bool:
        """Whether heads can start as attention to fixed distances."""
        return self.attends and (
            isinstance(self.embedding.positions, Learned)
            or all(
                isinstance(attention.positions, Rotary) and attention.bias
                for stack in self.stacks
                for attention in stack.attentions
            )
        )

    @property
    def allows_copy_heads(self) -> bool:
        """Whether cross-attention can start by finding equal tokens, and their neighbours."""
        relative = [each.positions for stack in self.stacks for each in stack.attentions]
        if isinstance(self.embedding.positions, Learned):
            positions = not self.embedding.factorised and not any(relative)
        else:
            positions = all(isinstance(each, RelativeBias) for each in relative)
        return self.attends and self.family == "encoder-decoder" and positions

    @property
    def allows_diagonal(self) -> bool:
        """Whether cross-attention can start by looking at the position of its query."""
        sinusoids = isinstance(self.embedding.positions, Sinusoidal)
        translates = self.attends and self.family == "encoder-decoder"
        return translates and sinusoids and not self.embedding.factorised

    @property
    def family(self) -> Literal["encoder-only", "decoder-only", "encoder-decoder"]:
        """An encoder alone is bidirectional, a decoder alone causal; both translate."""
        # "is None", also below: torch.compile of PyTorch 2.11 does not trace the truth of a spec.
        if self.encoder is not None and self.decoder is not None:
            return "encoder-decoder"
        return "decoder-only" if self.encoder is None else "encoder-only"

    @property
    def stacks(self) -> tuple[Stack, ...]:
        """The stacks there are, encoder first."""
        return tuple(stack for stack in (self.encoder, self.decoder) if stack is not None)

    @property
    def attends(self) -> bool:
        """Whether every layer is attention."""
        return all(len(stack.attentions) == stack.num_layers for stack in self.stacks)

    @property
    def packs(self) -> bool:
        """Whether every layer keeps the documents of a packed row apart."""
        return all(mixer.packs for stack in self.stacks for mixer in stack.mixers)

    @property
    def carries(self) -> bool:
        """Whether it is one stack every layer of which carries its state (`Mixer.carries`)."""
        one = len(self.stacks) == 1
        return one and all(mixer.carries for mixer in self.stacks[0].mixers)

    @property
    def biases_encoder(self) -> bool:
        """Whether the encoder's attention adds to its scores, in full, for any length."""
        attentions = self.encoder.attentions if self.encoder else ()
        return any(each.positions.has_scores for each in attentions if each.positions)

    @property
    def adds_loss(self) -> bool:
        """Whether a layer has a loss of its own (`Positionwise.adds_loss`)."""
        return any(stack.feed_forward.adds_loss for stack in self.stacks)

    @property
    def source_size(self) -> int:
        """Entries of the vocabulary of its input, the encoder's where there is one."""
        return self.source_vocab_size or self.vocab_size

    @property
    def num_token_types(self) -> int:
        """Token types (sentence A and B) that it embeds, or that its attention compares."""
        compared = [
            attention.positions.num_token_types
            for stack in self.stacks
            for attention in stack.attentions
            if attention.positions
        ]
        return max(self.embedding.num_token_types, *compared, 0)

    @property
    def reads_token_types(self) -> bool:
        """Whether they are more than one, or say which tokens are those of a question."""
        return self.num_token_types > 1 or self.global_tokens == "question"

    @property
    def has_global_tokens(self) -> bool:
        """Whether a layer of its encoder has them (`Mixer.has_global_tokens`)."""
        return self.encoder is not None and any(
            mixer.has_global_tokens for mixer in self.encoder.mixers
        )

    @property
    def global_tokens(self) -> Literal["first", "question"] | None:
        """Which tokens are global, by the first of its heads that says so; None: none."""
        heads = [head for head in self.heads if head.global_tokens and self.has_global_tokens]
        return heads[0].global_tokens if heads else None

    @property
    def query_stream(self) -> bool:
        """Whether it can predict tokens in any order (`Embedding.query_stream`)."""
        return self.embedding.query_stream

    @property
    def has_optional_weights(self) -> bool:
        """Whether it has weights of global tokens, of the query stream, or that compare types."""
        compares = self.num_token_types > self.embedding.num_token_types
        return self.has_global_tokens or self.query_stream or compares

    @property
    def absolute_positions(self) -> AbsolutePositions | None:
        """The positions that are added to its token vectors."""
        return self.embedding.positions

    @property
    def late_positions(self) -> AbsolutePositions | None:
        """Those of its mask decoder (`MLMHead.late_positions`)."""
        late = (head.late_positions for head in self.heads if isinstance(head, MLMHead))
        return next(late, None)

    @property
    def d_embedding(self) -> int:
        """Width of the token vectors: d_model, unless they are factorised."""
        return self.embedding.factorised.width if self.embedding.factorised else self.d_model

    @property
    def max_length(self) -> int | None:
        """Longest input in tokens, or None where positions have no end."""
        both = (self.embedding.positions, self.late_positions)
        limits = [each.max_length for each in both if each and each.max_length]
        return min(limits) if limits else None

    @property
    def head_input(self) -> HeadInput:
        """What the heads are built with: norm and dropout are those of the last stack."""
        last = self.stacks[-1]
        return HeadInput(
            vocab_size=self.vocab_size,
            d_model=self.d_model,
            d_embedding=self.d_embedding,
            projects=self.embedding.factorised is not None,
            norm=last.norm,
            dropout=last.dropout,
        )

    def with_dropout(self, dropout: float) -> Self:
        """The same model with this dropout in every stack."""
        stacks = {"encoder": self.encoder, "decoder": self.decoder}
        return self.replace(
            **{name: stack.with_dropout(dropout) for name, stack in stacks.items() if stack}
        )

    def kept_bytes(self, length: int, item: int, *, on_cpu: bool, recompute: bool = False) -> int:
        """As `Spec.kept_bytes`.

        A block keeps its residual stream in float32 and, in `item` bytes a number, the inputs of
        its products (Korthikanti et al. 2022, section 4.1, count theirs so). On a CPU it also keeps
        the probabilities of attention and the output of RMSNorm.
        """
        blocks = [*self._block_bytes(length, item, on_cpu=on_cpu)]
        if recompute:
            blocks = [*(4 * self.d_model for _ in blocks), max(blocks)]
        # One more norm, at the beginning or the end, and the head.
        head = (
            item
            * self.d_model
            * (4 if any(isinstance(head, MLMHead) and head.dense for head in self.heads) else 1)
        )
        return sum(blocks) + self._norm_bytes(self.stacks[-1], on_cpu=on_cpu) + head

    def _block_bytes(self, length: int, item: int, *, on_cpu: bool) -> Iterator[int]:
        """Bytes per token of every block in turn."""
        width = self.d_model
        for stack in self.stacks:
            mask = width if stack.dropout else 0
            added = len(stack.norms) * self._norm_bytes(stack, on_cpu=on_cpu) + item * mask
            inner = stack.feed_forward.kept_numbers(width) + (stack.block.reads - 1) * width
            feeding = item * inner + (stack.block.additions - 1) * added
            feeding = feeding if stack.feed_forward.computes else 0
            crosses = stack is self.decoder and self.encoder is not None
            # The encoder's output, in another precision for keys and for values.
            memory = 2 * item * width if crosses and item < 4 else 0
            again = stack.mixers[-1:] if self.late_positions else ()
            for mixer in (*stack.mixers, *again):
                kept = mixer.kept_numbers(length, item=item, on_cpu=on_cpu, dropout=mask > 0)
                one = added + item * (width + kept)
                yield one * (1 + crosses) + memory + feeding

    def _norm_bytes(self, stack: Stack, *, on_cpu: bool) -> int:
        """Its input; RMSNorm without a kernel also its output before the weight.

        One that is written out keeps three vectors.
        """
        if isinstance(stack.norm, DeviationNorm):
            return 12 * self.d_model
        return self.d_model * (8 if on_cpu and isinstance(stack.norm, RMSNorm) else 4)
