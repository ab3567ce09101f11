"""WordPiece (Schuster and Nakajima 2012) as in BERT, with greedy longest-match-first encoding."""

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
    """WordPiece: subwords with BERT's normalizer and pre-tokenizer (Devlin et al. 2018).

    In each training step, the `tokenizers` library merges the most frequent pair. The original
    WordPiece merged the pair that increases the likelihood of the text most.
    """

    kind: Literal["wordpiece"] = "wordpiece"
    component_types: ClassVar[tuple[str, ...]] = ("WordPiece",)
    special_tokens: SpecialTokens = BERT_SPECIALS
    lowercase: bool = Field(
        True, description="lower-case the text, and strip accents unless normalize is false"
    )
    min_frequency: int = Field(2, ge=1, description="minimum frequency of a pair to be merged")

    def train_backend(self, texts: Sequence[str]) -> tokenizers.Tokenizer:
        """Train a WordPiece tokenizer on texts: learn the subwords."""
        backend = tokenizers.Tokenizer(models.WordPiece(unk_token=self.unknown_token))
        backend.normalizer = normalizers.BertNormalizer(
            lowercase=self.lowercase, strip_accents=None if self.normalize else False
        )
        backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        backend.decoder = decoders.WordPiece(prefix=WORDPIECE_PREFIX)
        texts, alphabet = self.choose_alphabet(texts, backend.normalizer)
        # The library assigns ids to ## characters in random order and breaks ties between merges by
        # id. As special tokens, the characters keep their order.
        inner = [WORDPIECE_PREFIX + char for char in alphabet if not is_single_word(char)]
        self.run_trainer(
            backend,
            trainers.WordPieceTrainer,
            texts,
            space_before_words=False,
            extra_tokens=inner,
            min_frequency=self.min_frequency,
            continuing_subword_prefix=WORDPIECE_PREFIX,
            initial_alphabet=alphabet,
        )
        return self._reorder_ids(backend)

    def _reorder_ids(self, backend: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
        """Change the ids to the order special tokens, characters, ## characters, learned tokens.

        Returns the new tokenizer.
        """
        content = json.loads(backend.to_str())
        count = len(self.special_tokens)
        content["added_tokens"] = content["added_tokens"][:count]
        ids = content["model"]["vocab"]
        learned = sorted(ids, key=lambda token: ids[token])[count:]
        learned.sort(key=_make_sort_key)
        order = [*self.special_tokens, *learned]
        content["model"]["vocab"] = {token: index for index, token in enumerate(order)}
        return tokenizers.Tokenizer.from_str(json.dumps(content))

    @classmethod
    def other_files(cls, tokenizer: Tokenizer) -> dict[str, str]:
        """Return a dictionary with BERT's `vocab.txt`, which contains one token per line."""
        return {"vocab.txt": "".join(f"{token}\n" for token in tokenizer.tokens)}


def _make_sort_key(token: str) -> tuple[bool, bool, str]:
    """Return a sort key that puts characters first, then characters with ##, then other tokens.

    All other tokens have the same key, so that a stable sort keeps their order.
    """
    inner = token.startswith(WORDPIECE_PREFIX)
    if len(token.removeprefix(WORDPIECE_PREFIX)) != 1:
        return True, False, ""
    return False, inner, token
