"""ELECTRA: a discriminator, and a small generator that replaces tokens in its input.

DeBERTa v3 is trained in the same way, but shares token embeddings in another way.

Shape letters: B batch, T positions, M masked positions, D d_model of the generator, V vocabulary.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any, Literal

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

# The maximum number of token probabilities that `sample` holds in memory at a time.
_MAX_PROBABILITIES = 2**24
_SHARED = ("positions", "token_types", "norm")

Sharing = Literal["tied", "gradient-disentangled"]
"""How generator and discriminator share token embeddings (Clark et al. 2020; He et al. 2021b)."""


def generator_spec(discriminator: TransformerSpec, fraction: float = 0.25) -> TransformerSpec:
    """Return the spec of the generator: as deep as the discriminator, `fraction` times as wide.

    The token embeddings of generator and discriminator have the same width, because they are
    shared. If the initialization is Gaussian, its standard deviation is multiplied by the square
    root of (discriminator width / generator width).

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
        """Return the attention spec with `fraction` of the heads and of the total width."""
        heads = max(1, round(attention.num_heads * fraction))
        head_dim = max(2, 2 * round(discriminator.d_model * fraction / heads / 2))
        return attention.replace(num_heads=heads, num_kv_heads=None, head_dim=head_dim)

    def narrow_layer(layer: Layer) -> Layer:
        """Return the layer spec with narrower attention and feed-forward network."""
        network = layer.feed_forward and layer.feed_forward.scale_width(fraction)
        assert isinstance(layer.mixer, Attention)  # `attention_only`
        return layer.replace(mixer=scale_width(layer.mixer), feed_forward=network)

    stack = stack.map_layers(narrow_layer)
    first, inner = stack.attentions[0], discriminator.d_embedding
    width = first.num_heads * first.head_dim
    config = discriminator.initialization
    if isinstance(config, Normal):
        config = config.replace(std=config.std * (discriminator.d_model / width) ** 0.5)
        if inner != width and isinstance(embedding.positions, Learned):
            # A projection mixes the dimensions of positions, so no head could attend to an offset.
            config = config.replace(attention="random")
    return discriminator.replace(
        d_model=width,
        embedding=embedding.replace(factorised=None if inner == width else Factorised(width=inner)),
        encoder=stack,
        heads=(MLMHead(dense=Dense(activation="gelu", norm=True)),),
        initialization=config,
    )


class DisentangledTable(nn.Embedding):
    """Gradient-disentangled embedding: E_D = stopgrad(E_G) + E_delta (DeBERTa v3).

    E_D are the token embeddings of the discriminator, and E_G those of the generator. The loss of
    the discriminator has no gradient for E_G. The parameter `weight` is E_delta [V, E]. Source: He
    et al. 2021b, section 3.2, equation 5.

    Args:
        table: the initial token embeddings of the discriminator, E_D.
        shared: the generator's embedding, E_G, which is not a submodule of this module.
    """

    shared: nn.Embedding

    def __init__(self, table: nn.Embedding, shared: nn.Embedding) -> None:
        difference = table.weight.detach() - shared.weight.detach()
        super().__init__(table.num_embeddings, table.embedding_dim, _weight=difference)
        object.__setattr__(self, "shared", shared)  # not a submodule

    def forward(self, input: Tensor) -> Tensor:
        """Return the discriminator's token embeddings [B, T, E] for token ids, int64 [B, T]."""
        return F.embedding(input, self.shared.weight.detach()) + super().forward(input)

    def to_embedding(self) -> nn.Embedding:
        """Return E_D = E_G + E_delta as a plain `nn.Embedding` with detached weights."""
        return nn.Embedding.from_pretrained(
            (self.shared.weight + self.weight).detach(), freeze=not self.weight.requires_grad
        )


class GeneratorAndDiscriminator(nn.Module):
    """A generator and a discriminator that share token embeddings and are trained together.

    With `sharing` "tied", they share token embeddings, positions, token types and the embedding
    norm. These are submodules of the discriminator; the generator only refers to them, so that
    they are saved once. With "gradient-disentangled", the discriminator's token embeddings are a
    `DisentangledTable`, and nothing else is shared. Only the discriminator is used later.

    Source: Clark et al. 2020, sections 2 and 3.2; "tied" shares the same modules as the paper's
    released code.
    """

    def __init__(
        self, generator: Transformer, discriminator: Transformer, sharing: Sharing = "tied"
    ) -> None:
        super().__init__()
        self.generator, self.discriminator, self.sharing = generator, discriminator, sharing
        self.tie_weights()

    def tie_weights(self) -> None:
        """Share weights between generator and discriminator, which were separate before."""
        if self.sharing == "gradient-disentangled":
            tokens = DisentangledTable(self.discriminator.tokens, self.generator.tokens)
            self.discriminator.tokens = tokens
            return
        for user, owner, name in self._shared_modules():
            part = getattr(owner, name)
            if isinstance(part, nn.Module):
                delattr(user, name)
                object.__setattr__(user, name, part)  # not a submodule

    def untie_weights(self) -> None:
        """Stop sharing weights, so that generator and discriminator can be used separately."""
        if self.sharing == "gradient-disentangled":
            assert isinstance(self.discriminator.tokens, DisentangledTable)
            self.discriminator.tokens = self.discriminator.tokens.to_embedding()
            return
        for user, owner, name in self._shared_modules():  # a submodule again, when assigned
            setattr(user, name, copy.deepcopy(getattr(owner, name)))

    def _shared_modules(self) -> Iterator[tuple[nn.Module, nn.Module, str]]:
        """Yield (parent in generator, parent in discriminator, name) of each shared submodule."""
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

    def compile_blocks(self, **options: Any) -> None:
        """Compile every layer of the generator and the discriminator.

        The options are those of `torch.compile`.
        """
        self.generator.compile_blocks(**options)
        self.discriminator.compile_blocks(**options)

    def use_flex_attention(self) -> str:
        """Let the generator and the discriminator use FlexAttention.

        Returns the warning of one of them, or "". See `LanguageModule.use_flex_attention`.
        """
        warning = self.generator.use_flex_attention()
        return self.discriminator.use_flex_attention() or warning

    @torch.no_grad()
    def sample(self, hidden: Tensor, draws: Tensor) -> Tensor:
        """Sample a token id per masked position from the generator (inverse transform sampling).

        `hidden` are hidden states of the generator [M, D]; `draws` are uniform random numbers in
        [0, 1), float [M]. Returns token ids, int64 [M].
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
    """Return a discriminator and its generator, both with randomly initialized weights.

    The discriminator has the same weights as `build(discriminator, seed=seed)`. The generator
    starts with the token embeddings of the discriminator.
    """
    generator = build(generator_spec(discriminator, fraction), seed=seed + 1, device=device)
    model = build(discriminator, seed=seed, device=device)
    generator.tokens.load_state_dict(model.tokens.state_dict())
    return GeneratorAndDiscriminator(generator, model, sharing)


def _encoder(model: Transformer) -> TransformerStack:
    """Return the encoder of a model, which is not None in generators and discriminators."""
    assert model.encoder is not None  # `generator_spec` has checked it
    return model.encoder
