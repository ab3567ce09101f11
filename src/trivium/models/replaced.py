"""A discriminator with the generator that makes its training text (ELECTRA).

Shape letters: B batch, T positions, M masked positions, D d_model of the generator, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from trivium import spec
from trivium.errors import SpecError
from trivium.models import build
from trivium.models.transformer import Transformer

# Numbers of a distribution over the vocabulary that are held at a time.
_SAMPLED_AT_ONCE = 2**24
_SHARED = ("positions", "token_types", "norm")


def generator_spec(discriminator: spec.ModelSpec, fraction: float = 0.25) -> spec.ModelSpec:
    """The generator that goes with a discriminator: as deep, and `fraction` as wide.

    Its token vectors are as wide as the discriminator's, since they are the same. Weights start
    with a deviation that grows as their inputs become fewer.

    Source: Clark et al. 2020, section 3.2 and table 6: 1/4 for small and large, 1/3 for base, of
    hidden size, feed-forward size and heads.

    Raises:
        SpecError: the discriminator is no encoder, or widens its token vectors before positions are
            added to them.
    """
    stack, embedding = discriminator.encoder, discriminator.embedding
    early = embedding.factorised is not None and embedding.factorised.projected == "tokens"
    if stack is None or discriminator.decoder is not None or early:
        raise SpecError("a discriminator of replaced tokens is an encoder such as electra-mini.")

    def narrower(attention: spec.Attention) -> spec.Attention:
        heads = max(1, round(attention.num_heads * fraction))
        size = discriminator.d_model * fraction / heads
        even = max(2, 2 * round(size / 2))
        return attention.replace(num_heads=heads, num_kv_heads=None, head_dim=even)

    attentions = tuple(map(narrower, _listed(stack.attention)))
    width = attentions[0].num_heads * attentions[0].head_dim
    inner = discriminator.d_embedding
    start = discriminator.initialization
    if isinstance(start, spec.Normal):
        std = start.std * (discriminator.d_model / width) ** 0.5
        # Widening mixes the dimensions of learned positions: no head could look at a distance.
        mixed = inner != width and isinstance(embedding.positions, spec.Learned)
        start = start.replace(std=std, attention="random" if mixed else start.attention)
    return discriminator.replace(
        d_model=width,
        embedding=embedding.replace(
            factorised=None if inner == width else spec.Factorised(width=inner)
        ),
        encoder=stack.replace(
            attention=attentions if isinstance(stack.attention, tuple) else attentions[0],
            feed_forward=stack.feed_forward.replace(
                d_ff=max(1, round(stack.feed_forward.d_ff * fraction))
            ),
        ),
        heads=(spec.MLMHead(dense=spec.Dense(activation="gelu", norm=True)),),
        initialization=start,
    )


def _listed(
    attention: spec.Attention | tuple[spec.Attention, ...],
) -> tuple[spec.Attention, ...]:
    return attention if isinstance(attention, tuple) else (attention,)


class GeneratorAndDiscriminator(nn.Module):
    """Two encoders with one table of token vectors, trained together.

    Token vectors, positions, token types and their norm are the discriminator's; the generator has
    them by reference, so that they are parameters, and saved, once. What is kept of training is the
    discriminator, a model as any other; `whole_generator` gives the other one.

    Source: Clark et al. 2020, sections 2 and 3.2; shared is what their released code shares.
    """

    def __init__(self, generator: Transformer, discriminator: Transformer) -> None:
        super().__init__()
        self.generator, self.discriminator = generator, discriminator
        self._share()

    def _share(self) -> None:
        ours, theirs = self._embeddings
        for name in _SHARED:
            _lend(theirs, ours, name)
        _lend(self.discriminator, self.generator, "tokens")

    @property
    def _embeddings(self) -> tuple[nn.Module, nn.Module]:
        """What adds positions and types, of the generator and of the discriminator."""
        assert self.generator.encoder is not None
        assert self.discriminator.encoder is not None
        return self.generator.encoder.embedding, self.discriminator.encoder.embedding

    @property
    def spec(self) -> spec.ModelSpec:
        """The discriminator's."""
        return self.discriminator.spec

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.discriminator.device

    @property
    def dtype(self) -> torch.dtype:
        """The precision of the weights."""
        return self.discriminator.dtype

    @property
    def blocks(self) -> Iterator[nn.Module]:
        """The layers of both."""
        yield from self.generator.blocks
        yield from self.discriminator.blocks

    @property
    def vocabulary_tables(self) -> list[nn.Parameter]:
        """The matrices with a row for each token."""
        return self.discriminator.vocabulary_tables

    def compile_blocks(self) -> None:
        """Compile every layer of both."""
        self.generator.compile_blocks()
        self.discriminator.compile_blocks()

    @torch.no_grad()
    def sample(self, hidden: Tensor, draws: Tensor) -> Tensor:
        """Tokens drawn from the generator's distributions, by inverting their sums.

        Shape: hidden [M, D] of the generator, draws float [M] in [0, 1) -> int64 [M].
        """
        pieces = max(1, -(-len(hidden) * self.spec.vocab_size // _SAMPLED_AT_ONCE))
        found = []
        for part, draw in zip(hidden.chunk(pieces), draws.chunk(pieces), strict=True):
            logits = self.generator.logits(part).float()
            sums = logits.softmax(-1).cumsum(-1)
            wanted = draw[:, None] * sums[:, -1:]
            found.append(torch.searchsorted(sums, wanted, right=True)[:, 0])
        return torch.cat(found).clamp(max=self.spec.vocab_size - 1)

    def whole_generator(self) -> Transformer:
        """A copy of the generator that stands alone, with the weights of what it shares."""
        whole = build(self.generator.spec, device=self.device)
        whole.load_state_dict(self.generator.state_dict(), strict=False)
        whole.tokens.load_state_dict(self.generator.tokens.state_dict())
        assert whole.encoder is not None
        for name in _SHARED:
            part = getattr(whole.encoder.embedding, name)
            if isinstance(part, nn.Module):
                part.load_state_dict(getattr(self._embeddings[0], name).state_dict())
        return whole


def build_with_generator(
    discriminator: spec.ModelSpec,
    *,
    fraction: float = 0.25,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> GeneratorAndDiscriminator:
    """A new discriminator, as `build` makes it from `seed`, and its generator."""
    described = generator_spec(discriminator, fraction)
    generator = build(described, seed=seed + 1, device=device)
    return GeneratorAndDiscriminator(generator, build(discriminator, seed=seed, device=device))


def _lend(owner: nn.Module, borrower: nn.Module, name: str) -> None:
    """Let one module use another's part without owning it."""
    part = getattr(owner, name)
    if isinstance(part, nn.Module):
        delattr(borrower, name)
        # Past `nn.Module.__setattr__`, which would make it a part of the borrower too.
        borrower.__dict__[name] = part
