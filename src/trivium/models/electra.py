"""ELECTRA: a discriminator, and the small generator that replaces tokens for it.

DeBERTa v3 is trained so, too, with another way to share token vectors.

Shape letters: B batch, T positions, M masked positions, D d_model of the generator, V vocabulary.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trivium.errors import SpecError
from trivium.models import build
from trivium.models.heads import Dense
from trivium.models.heads.vocabulary import MLMHead
from trivium.models.initialization import Normal
from trivium.models.stack import Factorised
from trivium.models.transformer import ModelSpec, Transformer, TransformerStack
from trivium.nn.blocks import Layer
from trivium.nn.mixers.attention import Attention
from trivium.nn.positions.learned import Learned

# Numbers of a distribution over the vocabulary that are held at a time.
_PROBABILITIES = 2**24
_SHARED = ("positions", "token_types", "norm")

Sharing = Literal["tied", "gradient-disentangled"]
"""How generator and discriminator share token vectors (Clark et al. 2020; He et al. 2021b)."""


def generator_spec(discriminator: ModelSpec, fraction: float = 0.25) -> ModelSpec:
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

    def narrower(attention: Attention) -> Attention:
        heads = max(1, round(attention.num_heads * fraction))
        head_dim = max(2, 2 * round(discriminator.d_model * fraction / heads / 2))
        return attention.replace(num_heads=heads, num_kv_heads=None, head_dim=head_dim)

    def narrower_layer(layer: Layer) -> Layer:
        network = layer.feed_forward and layer.feed_forward.narrower(fraction)
        assert isinstance(layer.mixer, Attention)  # `attends`
        return layer.replace(mixer=narrower(layer.mixer), feed_forward=network)

    stack = stack.map_layers(narrower_layer)
    first, inner = stack.attentions[0], discriminator.d_embedding
    width = first.num_heads * first.head_dim
    start = discriminator.initialization
    if isinstance(start, Normal):
        start = start.replace(std=start.std * (discriminator.d_model / width) ** 0.5)
        if inner != width and isinstance(embedding.positions, Learned):
            # A projection mixes the dimensions of positions: no head could read a distance.
            start = start.replace(attention="random")
    return discriminator.replace(
        d_model=width,
        embedding=embedding.replace(factorised=None if inner == width else Factorised(width=inner)),
        encoder=stack,
        heads=(MLMHead(dense=Dense(activation="gelu", norm=True)),),
        initialization=start,
    )


class DisentangledTable(nn.Embedding):
    """E_D = stopgrad(E_G) + E_delta: no gradient of the discriminator reaches the generator's E_G.

    Source: He et al. 2021b (DeBERTa v3), section 3.2, equation 5. `weight` is E_delta [V, E].

    Args:
        table: E_D.
        shared: E_G, whose weight is not a parameter of this module.
    """

    shared: nn.Embedding

    def __init__(self, table: nn.Embedding, shared: nn.Embedding) -> None:
        difference = table.weight.detach() - shared.weight.detach()
        super().__init__(table.num_embeddings, table.embedding_dim, _weight=difference)
        object.__setattr__(self, "shared", shared)  # not a submodule

    def forward(self, input: Tensor) -> Tensor:
        """Int64 [B, T] -> [B, T, E]."""
        return F.embedding(input, self.shared.weight.detach()) + super().forward(input)

    def whole(self) -> nn.Embedding:
        """A plain table of E_D."""
        return nn.Embedding.from_pretrained(
            (self.shared.weight + self.weight).detach(), freeze=not self.weight.requires_grad
        )


class GeneratorAndDiscriminator(nn.Module):
    """Two encoders that share token vectors, trained together.

    If "tied", token vectors, positions, token types and their norm are the discriminator's; the
    generator refers to them, so that they are parameters, and saved, once. If
    "gradient-disentangled", the token vectors of the discriminator are a `DisentangledTable`, and
    nothing else is shared. The discriminator is what is used after training.

    Source: Clark et al. 2020, sections 2 and 3.2; "tied" is what their released code shares.
    """

    def __init__(
        self, generator: Transformer, discriminator: Transformer, sharing: Sharing = "tied"
    ) -> None:
        super().__init__()
        self.generator, self.discriminator, self.sharing = generator, discriminator, sharing
        self.join()

    def join(self) -> None:
        """Let two whole models share token vectors."""
        if self.sharing == "gradient-disentangled":
            tokens = DisentangledTable(self.discriminator.tokens, self.generator.tokens)
            self.discriminator.tokens = tokens
            return
        for user, owner, name in self._tied():
            part = getattr(owner, name)
            if isinstance(part, nn.Module):
                delattr(user, name)
                object.__setattr__(user, name, part)  # not a submodule

    def separate(self) -> None:
        """Make two whole models of them, each with weights of its own."""
        if self.sharing == "gradient-disentangled":
            assert isinstance(self.discriminator.tokens, DisentangledTable)
            self.discriminator.tokens = self.discriminator.tokens.whole()
            return
        for user, owner, name in self._tied():  # assigned again, it is a submodule
            setattr(user, name, copy.deepcopy(getattr(owner, name)))

    def _tied(self) -> Iterator[tuple[nn.Module, nn.Module, str]]:
        """Where the generator has what is the discriminator's, and its name."""
        yield self.generator, self.discriminator, "tokens"
        for name in _SHARED:
            yield _encoder(self.generator).embedding, _encoder(self.discriminator).embedding, name

    @property
    def spec(self) -> ModelSpec:
        """The discriminator's."""
        return self.discriminator.spec

    @property
    def blocks(self) -> Iterator[nn.Module]:
        """The layers of both."""
        yield from self.generator.blocks
        yield from self.discriminator.blocks

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


def build_with_generator(
    discriminator: ModelSpec,
    *,
    fraction: float = 0.25,
    sharing: Sharing = "tied",
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> GeneratorAndDiscriminator:
    """A new discriminator, as `build` makes it from `seed`, and its generator.

    Both start with the token vectors of the discriminator.
    """
    generator = build(generator_spec(discriminator, fraction), seed=seed + 1, device=device)
    model = build(discriminator, seed=seed, device=device)
    generator.tokens.load_state_dict(model.tokens.state_dict())
    return GeneratorAndDiscriminator(generator, model, sharing)


def _encoder(model: Transformer) -> TransformerStack:
    assert model.encoder is not None  # `generator_spec` has checked it
    return model.encoder
