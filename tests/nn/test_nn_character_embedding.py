"""Token vectors from characters, against loops over the formulas in float64."""

from __future__ import annotations

import pytest
import torch

from trivium import spec
from trivium.models import build
from trivium.text import Tokenizer

pytestmark = pytest.mark.usefixtures("double_precision")

BEGIN, END, PADDING = 256, 257, 258
PART = spec.CharacterCNN(d_character=3, filters=(2, 3, 5), max_characters=9)
SPEC = spec.RNNSpec(
    vocab_size=300, d_model=7, cell="lstm", d_hidden=11, num_layers=2, d_projection=7,
    direction="bilm", connections="residual", characters=PART,
    heads=(spec.LMHead(tied=False),),
)  # fmt: skip


def vector(module, characters):
    """One token: every filter at every position, the largest, highway layers, a projection."""
    letters = [module.characters.weight[c] for c in characters]
    features = []
    for convolution in module.convolutions:
        for weight, bias in zip(convolution.weight, convolution.bias):
            width = weight.shape[1]
            found = [
                sum(weight[:, i] @ letters[p + i] for i in range(width)) + bias
                for p in range(len(letters) - width + 1)
            ]
            features.append(torch.stack(found).max().clamp(min=0.0))
    x = torch.stack(features)
    for gate, transform in zip(module.gates, module.transforms):
        g = torch.sigmoid(gate.weight @ x + gate.bias)
        x = g * (transform.weight @ x + transform.bias).clamp(min=0.0) + (1.0 - g) * x
    return module.project.weight @ x + module.project.bias


def test_token_vectors_are_their_formula_and_equal_ids_are_computed_once(monkeypatch):
    module = build(SPEC, seed=1).double().tokens
    words = [b"cat", b"s", b"abcdefghijk", b""]
    module.set_character_ids(words, [False, True, False, False])
    rows = [
        [BEGIN, *b"cat", END, *[PADDING] * 4],
        [*b"s", END, *[PADDING] * 7],
        [BEGIN, *b"abcdefg", END],
        [BEGIN, END, *[PADDING] * 7],
    ]
    assert module.character_ids[:4].tolist() == rows
    assert module.character_ids[12].tolist() == [BEGIN, *b"12", END, *[PADDING] * 5]
    ids, counts, read = torch.tensor([[0, 1, 0], [3, 0, 3]]), [], module.read
    monkeypatch.setattr(module, "read", lambda x: counts.append(len(x)) or read(x))
    for some in (ids, torch.tensor([[2]]), torch.tensor([[2, 0]])):  # a long one changes no other
        expected = torch.stack([vector(module, rows[i]) for i in some.flatten().tolist()])
        torch.testing.assert_close(module(some).flatten(0, 1), expected)
    assert counts == [3, 1, 2]


@pytest.mark.parametrize("kind", ["wordpiece", "byte-bpe"])
def test_a_tokenizer_says_how_its_tokens_are_written(kind, tmp_path):
    texts = ["the cats catch a cat", "cats and the catch \u4e2d\u6587"] * 8
    tokenizer = Tokenizer.train(kind, texts=texts, vocab_size=290, progress=False)
    module = build(SPEC, seed=1)
    module.set_character_ids(tokenizer)
    for word in ("the", "\u4e2d\u6587"):
        ids = list(tokenizer.encode(f"a {word}", add_special_tokens=False).ids[1:])
        rows = module.tokens.character_ids[ids].tolist()
        text = b"".join(bytes(c for c in row if c < BEGIN) for row in rows)
        assert text.decode().strip() == word
        assert rows[0][0] == BEGIN
    piece = next(i for i, inside in enumerate(tokenizer.continues_word()) if inside)
    assert module.tokens.character_ids[piece][0] != BEGIN
