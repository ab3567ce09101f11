"""Models whose probabilities are known: a bias for every token, whatever stands around it."""

from __future__ import annotations

import torch

from trivium import spec
from trivium.language_model import LanguageModel
from trivium.models import build
from trivium.text import Tokenizer

MAX_LENGTH = 61


def word_tokenizer(words: list[str], special_tokens: list[str]) -> Tokenizer:
    """Whole words; the more often one is given, the earlier its id."""
    return Tokenizer.train(
        "whitespace",
        texts=[" ".join(words)],
        vocab_size=len({*words}) + len(special_tokens),
        special_tokens=special_tokens,
        progress=False,
    )


SPECIALS = {
    "decoder": ["<unk>", "</s>"],
    "encoder": ["[UNK]", "[CLS]", "[SEP]", "[MASK]", "[PAD]"],
    "encoder-decoder": ["<unk>", "</s>", "<pad>"],
}


def counting_model(family: str, logits: dict[str, float]) -> LanguageModel:
    """A model of a family that gives every word its logit; all other tokens have -20."""
    tokenizer = word_tokenizer(list(logits), SPECIALS[family])
    block = spec.Stack.from_mixers(
        num_layers=1,
        mixer=spec.Attention(num_heads=2, head_dim=3),
        feed_forward=spec.MLP(d_ff=7, activation="gelu"),
        norm=spec.LayerNorm(),
        norm_placement="pre",
    )
    head: spec.Head = spec.LMHead(tied=False, bias=True)
    if family == "encoder":
        head = spec.MLMHead(dense=None, tied=False, bias=True)
    found = spec.TransformerSpec(
        vocab_size=tokenizer.vocab_size,
        d_model=6,
        embedding=spec.Embedding(positions=spec.Learned(max_length=MAX_LENGTH)),
        encoder=block if family.startswith("encoder") else None,
        decoder=block if family.endswith("decoder") else None,
        heads=(head,),
    )
    module = build(found, seed=0)
    with torch.no_grad():
        for weight in module.parameters():
            weight.zero_()
        bias = torch.full((tokenizer.vocab_size,), -20.0)
        for word, logit in logits.items():
            bias[tokenizer.token_to_id(word)] = logit
        module.heads[head.kind].bias.copy_(bias)
    return LanguageModel(found, module, tokenizer)


def log_probabilities(lm: LanguageModel, logits: dict[str, float]) -> dict[str, float]:
    """What `counting_model` gives each word, in float64."""
    assert lm.tokenizer is not None
    values = [*logits.values(), *[-20.0] * (lm.tokenizer.vocab_size - len(logits))]
    total = float(torch.tensor(values, dtype=torch.float64).logsumexp(0))
    return {word: logit - total for word, logit in logits.items()}
