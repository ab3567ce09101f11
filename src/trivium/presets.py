"""The named sizes of the literature, each with its paper, and two small sizes of every family.

`-tiny` (2 layers of width 128) and `-mini` (4 of 256) are for trying and testing; where a family
published sizes of these names (BERT), those are meant.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from trivium.errors import SpecError, did_you_mean
from trivium.spec import (
    Attention,
    Embedding,
    FeedForward,
    Initialization,
    LayerNorm,
    Learned,
    LMHead,
    MLMHead,
    ModelSpec,
    NSPHead,
    RMSNorm,
    Rotary,
    Sliding,
    Stack,
)


@dataclass(frozen=True)
class Preset:
    """A named size: its description, where it was published and the context it was trained at."""

    spec: ModelSpec
    paper: str
    context: int


def _bert(num_layers: int, d_model: int, *, vocab_size: int = 30_522) -> Preset:
    norm = LayerNorm(eps=1e-12)
    spec = ModelSpec(
        vocab_size=vocab_size,
        d_model=d_model,
        embedding=Embedding(positions=Learned(max_length=512), num_token_types=2, norm=norm),
        encoder=Stack(
            num_layers=num_layers,
            attention=Attention(num_heads=d_model // 64, head_dim=64),
            feed_forward=FeedForward(d_ff=4 * d_model, activation="gelu"),
            norm=norm,
            norm_order="post",
            dropout=0.1,
        ),
        heads=(MLMHead(), NSPHead()),
        initialization=Initialization(
            std=round(d_model**-0.5, 4), branches="zero", attention="offsets"
        ),
    )
    return Preset(spec, "Devlin et al. 2018 (BERT); small sizes: Turc et al. 2019", 512)


def _gpt2(num_layers: int, d_model: int, *, num_heads: int | None = None) -> Preset:
    spec = ModelSpec(
        vocab_size=50_257,
        d_model=d_model,
        embedding=Embedding(positions=Learned(max_length=1024)),
        decoder=Stack(
            num_layers=num_layers,
            attention=Attention(
                num_heads=num_heads or d_model // 64,
                head_dim=d_model // (num_heads or d_model // 64),
            ),
            feed_forward=FeedForward(d_ff=4 * d_model, activation="gelu_tanh"),
            norm=LayerNorm(),
            norm_order="pre",
            dropout=0.1,
        ),
        heads=(LMHead(tied=True),),
        initialization=Initialization(branches="scaled"),
    )
    return Preset(spec, "Radford et al. 2019 (GPT-2)", 1024)


def _llama(
    num_layers: int,
    d_model: int,
    num_heads: int,
    d_ff: int,
    *,
    num_kv_heads: int | None = None,
    vocab_size: int = 32_000,
    base: float = 10_000.0,
    eps: float = 1e-6,
    context: int = 2048,
    tied: bool = False,
    paper: str = "Touvron et al. 2023 (LLaMA)",
) -> Preset:
    spec = ModelSpec(
        vocab_size=vocab_size,
        d_model=d_model,
        embedding=Embedding(),
        decoder=Stack(
            num_layers=num_layers,
            attention=Attention(
                num_heads=num_heads,
                head_dim=d_model // num_heads,
                num_kv_heads=num_kv_heads,
                bias=False,
                positions=Rotary(base=base),
            ),
            feed_forward=FeedForward(d_ff=d_ff, activation="silu", gated=True, bias=False),
            norm=RMSNorm(eps=eps),
            norm_order="pre",
        ),
        heads=(LMHead(tied=tied),),
        initialization=Initialization(branches="scaled"),
    )
    return Preset(spec, paper, context)


def _modern_encoder(num_layers: int, d_model: int) -> Preset:
    """ModernBERT's shape at sizes for short runs: every third layer sees all, the others near by.

    Narrow windows first, blocks that start as the identity and a head without a transform let it
    leave the plateau of word frequencies within minutes.
    """
    norm = LayerNorm(bias=False)
    everywhere = Attention(num_heads=d_model // 64, head_dim=64, bias=False, positions=Rotary())
    nearby = everywhere.replace(pattern=Sliding(window=4))
    spec = ModelSpec(
        vocab_size=50_368,
        d_model=d_model,
        embedding=Embedding(norm=norm),
        encoder=Stack(
            num_layers=num_layers,
            attention=(nearby, nearby, everywhere),
            feed_forward=FeedForward(
                d_ff=3 * d_model // 2, activation="gelu", gated=True, bias=False
            ),
            norm=norm,
            norm_order="pre",
        ),
        heads=(MLMHead(activation="none"),),
        initialization=Initialization(std=round(d_model**-0.5, 4), branches="zero"),
    )
    return Preset(spec, "after Warner et al. 2024 (ModernBERT), at sizes for short runs", 8192)


_LLAMA2 = "Touvron et al. 2023 (Llama 2)"
_LLAMA3 = "Grattafiori et al. 2024 (Llama 3)"

catalogue: dict[str, Preset] = {
    "bert-tiny": _bert(2, 128),
    "bert-mini": _bert(4, 256),
    "bert-small": _bert(4, 512),
    "bert-medium": _bert(8, 512),
    "bert-base": _bert(12, 768),
    "bert-large": _bert(24, 1024),
    "modernbert-tiny": _modern_encoder(2, 128),
    "modernbert-mini": _modern_encoder(4, 256),
    "modernbert-small": _modern_encoder(6, 512),
    "gpt2-tiny": _gpt2(2, 128),
    "gpt2-mini": _gpt2(4, 256),
    "gpt2-small": _gpt2(6, 512),
    "gpt2": _gpt2(12, 768),
    "gpt2-medium": _gpt2(24, 1024),
    "gpt2-large": _gpt2(36, 1280),
    "gpt2-xl": _gpt2(48, 1600),
    "llama-tiny": _llama(2, 128, 4, 344, num_kv_heads=2),
    "llama-mini": _llama(4, 256, 4, 688, num_kv_heads=2),
    "llama-small": _llama(8, 512, 8, 1376, num_kv_heads=4),
    "llama-7b": _llama(32, 4096, 32, 11_008),
    "llama-13b": _llama(40, 5120, 40, 13_824),
    "llama-33b": _llama(60, 6656, 52, 17_920),
    "llama-65b": _llama(80, 8192, 64, 22_016),
    "llama2-7b": _llama(32, 4096, 32, 11_008, eps=1e-5, context=4096, paper=_LLAMA2),
    "llama2-70b": _llama(
        80, 8192, 64, 28_672, num_kv_heads=8, eps=1e-5, context=4096, paper=_LLAMA2
    ),
    "llama3-8b": _llama(
        32,
        4096,
        32,
        14_336,
        num_kv_heads=8,
        vocab_size=128_256,
        base=500_000.0,
        eps=1e-5,
        context=8192,
        paper=_LLAMA3,
    ),
    "llama3-70b": _llama(
        80,
        8192,
        64,
        28_672,
        num_kv_heads=8,
        vocab_size=128_256,
        base=500_000.0,
        eps=1e-5,
        context=8192,
        paper=_LLAMA3,
    ),
}


class Presets(Mapping[str, ModelSpec]):
    """Name -> ModelSpec; an unknown name is an error that suggests the nearest."""

    def __getitem__(self, name: str) -> ModelSpec:
        return find(name).spec

    def __iter__(self) -> Iterator[str]:
        return iter(catalogue)

    def __len__(self) -> int:
        return len(catalogue)

    def __contains__(self, name: object) -> bool:
        return name in catalogue


def find(name: str) -> Preset:
    """The preset called `name`. Raises SpecError for an unknown name."""
    if name not in catalogue:
        raise SpecError(
            f'there is no preset "{name}".{did_you_mean(name, catalogue)} '
            "`trivium presets` lists them."
        )
    return catalogue[name]


presets = Presets()
