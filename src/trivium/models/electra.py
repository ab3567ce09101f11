"""ELECTRA: a discriminator, and a small generator that replaces tokens in its input.

DeBERTa v3 is trained in the same way, except that it shares token embeddings differently.

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
from trivium.models.transformer import Transformer, TransformerSpec, TransformerStack
from trivium.nn.blocks import Layer
from trivium.nn.mixers.attention import Attention
from trivium.nn.positions.learned import Learned

# The maximum number of token probabilities that are held in memory at a time.
_MAX_PROBABILITIES = 2**24
_SHARED = ("positions", "token_types", "norm")

Sharing = Literal["tied", "gradient-disentangled"]
"""How generator and discriminator share token embeddings (Clark et al. 2020; He et al. 2021b)."""


def generator_spec(discriminator: TransformerSpec, fraction: float = 0.25) -> TransformerSpec:
    """Return the spec of a discriminator's generator: equally deep, `fraction` times as wide.

    The token embeddings of generator and discriminator have the same width, because they are
    shared. In a normal initialization, the standard deviation grows as the width shrinks.

    Source: Clark et al. 2020, section 3.2 and table 6: the fraction is 1/4 for small and large and
    1/3 for base, for hidden size, feed-forward size and heads.

    Raises:
        SpecError: the discriminator is not an encoder in which every mixer is attention, or it
            projects its token embeddings before positions are added.
    """
    stack, embedding = discriminator.encoder, discriminator.embedding
    projects_early = embedding.factorised is not None and embedding.factorised.projected == "tokens"
    if stack is None or discriminator.decoder or not discriminator.attention_only or projects_early:
        raise SpecError("a discriminator of replaced tokens is an encoder such as electra-mini.")

    def scale_width(attention: Attention) -> Attention:
        """Return the attention with `fraction` of the heads and of the total width (rounded)."""
        heads = max(1, round(attention.num_heads * fraction))
        head_dim = max(2, 2 * round(discriminator.d_model * fraction / heads / 2))
        return attention.replace(num_heads=heads, num_kv_heads=None, head_dim=head_dim)

    def narrow_layer(layer: Layer) -> Layer:
        """Return the layer with a narrower attention and feed-forward network."""
        network = layer.feed_forward and layer.feed_forward.scale_width(fraction)
        assert isinstance(layer.mixer, Attention)  # `attention_only`
        return layer.replace(mixer=scale_width(layer.mixer), feed_forward=network)

    stack = stack.map_layers(narrow_layer)
    first, inner = stack.attentions[0], discriminator.d_embedding
    width = first.num_heads * first.head_dim
    start = discriminator.initialization
    if isinstance(start, Normal):
        start = start.replace(std=start.std * (discriminator.d_model / width) ** 0.5)
        if inner != width and isinstance(embedding.positions, Learned):
            # A projection mixes the dimensions of positions, so no head could read an offset.
            start = start.replace(attention="random")
    return discriminator.replace(
        d_model=width,
        embedding=embedding.replace(factorised=None if inner == width else Factorised(width=inner)),
        encoder=stack,
        heads=(MLMHead(dense=Dense(activation="gelu", norm=True)),),
        initialization=start,
    )


class DisentangledTable(nn.Embedding):
    """Embedding E_D = stopgrad(E_G) + E_delta: the discriminator's loss has no gradient for E_G.

    E_D are the discriminator's and E_G the generator's token embeddings. `weight` is E_delta
    [V, E]. Source: He et al. 2021b (DeBERTa v3), section 3.2, equation 5.

    Args:
        table: the initial E_D.
        shared: E_G, whose weight is not a parameter of this module.
    """

    shared: nn.Embedding

    def __init__(self, table: nn.Embedding, shared: nn.Embedding) -> None:
        difference = table.weight.detach() - shared.weight.detach()
        super().__init__(table.num_embeddings, table.embedding_dim, _weight=difference)
        object.__setattr__(self, "shared", shared)  # not a submodule

    def forward(self, input: Tensor) -> Tensor:
        """Return token embeddings [B, T, E] for ids, int64 [B, T]."""
        return F.embedding(input, self.shared.weight.detach()) + super().forward(input)

    def merge(self) -> nn.Embedding:
        """Return E_D = E_G + E_delta as a plain `nn.Embedding` with detached weights."""
        return nn.Embedding.from_pretrained(
            (self.shared.weight + self.weight).detach(), freeze=not self.weight.requires_grad
        )


class GeneratorAndDiscriminator(nn.Module):
    """A generator and a discriminator that share token embeddings and are trained together.

    With "tied", the discriminator owns token embeddings, positions, token types and the embedding
    norm; the generator refers to these modules, so that they are registered and saved once. With
    "gradient-disentangled", the discriminator's token embeddings are a `DisentangledTable`, and
    nothing else is shared. After training, only the discriminator is used.

    Source: Clark et al. 2020, sections 2 and 3.2; "tied" shares the same modules as the paper's
    released code.
    """

    def __init__(
        self, generator: Transformer, discriminator: Transformer, sharing: Sharing = "tied"
    ) -> None:
        super().__init__()
        self.generator, self.discriminator, self.sharing = generator, discriminator, sharing
        self.join()

    def join(self) -> None:
        """Share weights between generator and discriminator, which were two standalone models."""
        if self.sharing == "gradient-disentangled":
            tokens = DisentangledTable(self.discriminator.tokens, self.generator.tokens)
            self.discriminator.tokens = tokens
            return
        for user, owner, name in self._shared_modules():
            part = getattr(owner, name)
            if isinstance(part, nn.Module):
                delattr(user, name)
                object.__setattr__(user, name, part)  # not a submodule

    def separate(self) -> None:
        """Stop sharing weights: generator and discriminator become two standalone models."""
        if self.sharing == "gradient-disentangled":
            assert isinstance(self.discriminator.tokens, DisentangledTable)
            self.discriminator.tokens = self.discriminator.tokens.merge()
            return
        for user, owner, name in self._shared_modules():  # assigned again, it is a submodule
            setattr(user, name, copy.deepcopy(getattr(owner, name)))

    def _shared_modules(self) -> Iterator[tuple[nn.Module, nn.Module, str]]:
        """Yield (generator's module, discriminator's module, name) for each shared submodule."""
        yield self.generator, self.discriminator, "tokens"
        for name in _SHARED:
            yield _encoder(self.generator).embedding, _encoder(self.discriminator).embedding, name

    @property
    def spec(self) -> TransformerSpec:
        """The spec of the discriminator."""
        return self.discriminator.spec

    @property
    def blocks(self) -> Iterator[nn.Module]:
        """The blocks of the generator and the discriminator."""
        yield from self.generator.blocks
        yield from self.discriminator.blocks

    def compile_blocks(self) -> None:
        """Compile every layer of the generator and the discriminator."""
        self.generator.compile_blocks()
        self.discriminator.compile_blocks()

    @torch.no_grad()
    def sample(self, hidden: Tensor, draws: Tensor) -> Tensor:
        """Return tokens sampled from the generator's distributions by inverse transform sampling.

        Shape: generator hidden states [M, D], draws float [M] in [0, 1) -> int64 [M].
        """
        chunks = max(1, -(-len(hidden) * self.spec.vocab_size // _MAX_PROBABILITIES))
        tokens = []
        for part, draw in zip(hidden.chunk(chunks), draws.chunk(chunks), strict=True):
            sums = self.generator.logits(part).float().softmax(-1).cumsum(-1)
            threshold = draw[:, None] * sums[:, -1:]
            tokens.append(torch.searchsorted(sums, threshold, right=True)[:, 0])
        return torch.cat(tokens).clamp(max=self.spec.vocab_size - 1)


def build_with_generator(
    discriminator: TransformerSpec,
    *,
    fraction: float = 0.25,
    sharing: Sharing = "tied",
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> GeneratorAndDiscriminator:
    """Return a new discriminator with its generator, both initialized at random from `seed`.

    The discriminator is that of `build` with `seed`. The generator starts with the token embeddings
    of the discriminator.
    """
    generator = build(generator_spec(discriminator, fraction), seed=seed + 1, device=device)
    model = build(discriminator, seed=seed, device=device)
    generator.tokens.load_state_dict(model.tokens.state_dict())
    return GeneratorAndDiscriminator(generator, model, sharing)


def _encoder(model: Transformer) -> TransformerStack:
    """Return the encoder of a model that always has one."""
    assert model.encoder is not None  # `generator_spec` has checked it
    return model.encoder
