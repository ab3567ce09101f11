"""WordPiece (Schuster and Nakajima 2012) in BERT's form: greedy longest match first."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import ClassVar, Literal

import tokenizers
from pydantic import Field
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from trivium.text.roles import BERT_SPECIALS
from trivium.text.symbols import WORDPIECE_PREFIX, is_single_word
from trivium.text.tokenizer import Tokenizer
from trivium.text.trainers import CharacterTokenizerConfig, SpecialTokens


class WordPiece(CharacterTokenizerConfig):
    """Subwords with BERT's normalizer and splits (Devlin et al. 2018).

    The `tokenizers` library merges the most frequent pair, where the original WordPiece took the
    pair that increases the likelihood most.
    """

    kind: Literal["wordpiece"] = "wordpiece"
    component_types: ClassVar[tuple[str, ...]] = ("WordPiece",)
    special_tokens: SpecialTokens = BERT_SPECIALS
    lowercase: bool = Field(
        True, description="lower-case the text and, unless normalize is false, strip accents"
    )
    min_frequency: int = Field(2, ge=1, description="how often a pair must occur to be merged")

    def build(self, texts: Sequence[str]) -> tokenizers.Tokenizer:
        """Learn subwords."""
        backend = tokenizers.Tokenizer(models.WordPiece(unk_token=self.unknown_token))
        backend.normalizer = normalizers.BertNormalizer(
            lowercase=self.lowercase, strip_accents=None if self.normalize else False
        )
        backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        backend.decoder = decoders.WordPiece(prefix=WORDPIECE_PREFIX)
        texts, alphabet = self.cover(texts, backend.normalizer)
        # The library numbers ## characters at random, and decides ties between merges by these
        # numbers; as special tokens they keep their order.
        inner = [WORDPIECE_PREFIX + char for char in alphabet if not is_single_word(char)]
        self.run_trainer(
            backend,
            trainers.WordPieceTrainer,
            texts,
            space_before_words=False,
            more_special_tokens=inner,
            min_frequency=self.min_frequency,
            continuing_subword_prefix=WORDPIECE_PREFIX,
            initial_alphabet=alphabet,
        )
        return self._reorder(backend)

    def _reorder(self, backend: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
        """Special tokens, characters, ## characters, then learned tokens."""
        content = json.loads(backend.to_str())
        count = len(self.special_tokens)
        content["added_tokens"] = content["added_tokens"][:count]
        ids = content["model"]["vocab"]
        learned = sorted(ids, key=lambda token: ids[token])[count:]
        learned.sort(key=_character_order)
        order = [*self.special_tokens, *learned]
        content["model"]["vocab"] = {token: index for index, token in enumerate(order)}
        return tokenizers.Tokenizer.from_str(json.dumps(content))

    @classmethod
    def other_files(cls, tokenizer: Tokenizer) -> dict[str, str]:
        """BERT's `vocab.txt`, a token a line."""
        return {"vocab.txt": "".join(f"{token}\n" for token in tokenizer.tokens)}


def _character_order(token: str) -> tuple[bool, bool, str]:
    """Sorts characters, then ## characters, then longer tokens, which keep their order."""
    inner = token.startswith(WORDPIECE_PREFIX)
    if len(token.removeprefix(WORDPIECE_PREFIX)) != 1:
        return True, False, ""
    return False, inner, token
