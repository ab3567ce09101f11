"""ELECTRA: a discriminator, and the small generator that replaces tokens for it.

Shape letters: B batch, T positions, M masked positions, D d_model of the generator, V vocabulary.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from trivium import spec
from trivium.errors import SpecError
from trivium.models import build
from trivium.models.transformer import Transformer, TransformerStack

# Numbers of a distribution over the vocabulary that are held at a time.
_PROBABILITIES = 2**24
_SHARED = ("positions", "token_types", "norm")


def generator_spec(discriminator: spec.ModelSpec, fraction: float = 0.25) -> spec.ModelSpec:
    """The generator of a discriminator: as deep, and `fraction` as wide.

    Its token vectors are as wide as the discriminator's, which it shares. The deviation of its
    starting weights grows as their inputs become fewer.

    Source: Clark et al. 2020, section 3.2 and table 6: 1/4 for small and large, 1/3 for base, of
    hidden size, feed-forward size and heads.

    Raises:
        SpecError: the discriminator is no encoder, or projects its token vectors before positions
            are added.
    """
    stack, embedding = discriminator.encoder, discriminator.embedding
    early = embedding.factorised is not None and embedding.factorised.projected == "tokens"
    if stack is None or discriminator.decoder or not discriminator.attends or early:
        raise SpecError("a discriminator of replaced tokens is an encoder such as electra-mini.")

    def narrower(attention: spec.Attention) -> spec.Attention:
        heads = max(1, round(attention.num_heads * fraction))
        head_dim = max(2, 2 * round(discriminator.d_model * fraction / heads / 2))
        return attention.replace(num_heads=heads, num_kv_heads=None, head_dim=head_dim)

    mixers = stack.mixer if isinstance(stack.mixer, tuple) else (stack.mixer,)
    first, *others = (narrower(one) for one in mixers if isinstance(one, spec.Attention))
    width, inner = first.num_heads * first.head_dim, discriminator.d_embedding
    start = discriminator.initialization
    if isinstance(start, spec.Normal):
        start = start.replace(std=start.std * (discriminator.d_model / width) ** 0.5)
        if inner != width and isinstance(embedding.positions, spec.Learned):
            # A projection mixes the dimensions of positions: no head could read a distance.
            start = start.replace(attention="random")
    return discriminator.replace(
        d_model=width,
        embedding=embedding.replace(
            factorised=None if inner == width else spec.Factorised(width=inner)
        ),
        encoder=stack.replace(
            mixer=(first, *others) if others else first,
            feed_forward=stack.feed_forward.narrower(fraction),
        ),
        heads=(spec.MLMHead(dense=spec.Dense(activation="gelu", norm=True)),),
        initialization=start,
    )


class GeneratorAndDiscriminator(nn.Module):
    """Two encoders with one table of token vectors, trained together.

    Token vectors, positions, token types and their norm are the discriminator's; the generator
    refers to them, so that they are parameters, and saved, once. The discriminator is what is used
    after training; `whole_generator` gives the other one.

    Source: Clark et al. 2020, sections 2 and 3.2; shared is what their released code shares.
    """

    def __init__(self, generator: Transformer, discriminator: Transformer) -> None:
        super().__init__()
        self.generator, self.discriminator = generator, discriminator
        for name in _SHARED:
            _share(_encoder(discriminator).embedding, _encoder(generator).embedding, name)
        _share(discriminator, generator, "tokens")

    @property
    def spec(self) -> spec.ModelSpec:
        """The discriminator's."""
        return self.discriminator.spec

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
        """Tokens sampled from the generator's distributions, by inverting their cumulative sums.

        Shape: hidden [M, D] of the generator, draws float [M] in [0, 1) -> int64 [M].
        """
        chunks = max(1, -(-len(hidden) * self.spec.vocab_size // _PROBABILITIES))
        tokens = []
        for part, draw in zip(hidden.chunk(chunks), draws.chunk(chunks), strict=True):
            sums = self.generator.logits(part).float().softmax(-1).cumsum(-1)
            threshold = draw[:, None] * sums[:, -1:]
            tokens.append(torch.searchsorted(sums, threshold, right=True)[:, 0])
        return torch.cat(tokens).clamp(max=self.spec.vocab_size - 1)

    def whole_generator(self) -> Transformer:
        """A copy of the generator with weights of its own in place of the shared ones."""
        whole = copy.deepcopy(self.generator)
        for module, names in ((whole, ("tokens",)), (_encoder(whole).embedding, _SHARED)):
            for name in names:  # assigned again, they are submodules
                setattr(module, name, getattr(module, name))
        return whole


def build_with_generator(
    discriminator: spec.ModelSpec,
    *,
    fraction: float = 0.25,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> GeneratorAndDiscriminator:
    """A new discriminator, as `build` makes it from `seed`, and its generator."""
    generator = build(generator_spec(discriminator, fraction), seed=seed + 1, device=device)
    return GeneratorAndDiscriminator(generator, build(discriminator, seed=seed, device=device))


def _encoder(model: Transformer) -> TransformerStack:
    assert model.encoder is not None  # `generator_spec` has checked it
    return model.encoder


def _share(owner: nn.Module, user: nn.Module, name: str) -> None:
    """Let one module use a part of another without registering its parameters again."""
    part = getattr(owner, name)
    if isinstance(part, nn.Module):
        delattr(user, name)
        # Past `nn.Module.__setattr__`, which would register it as a submodule.
        user.__dict__[name] = part
