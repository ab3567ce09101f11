"""The Unigram language model of subwords (Kudo 2018).

A segmentation x = (x_1 .. x_M) of a text into pieces has the probability p(x_1) ... p(x_M). The
probability of a text is the sum over all of its segmentations. Encoding chooses the most probable
segmentation (Viterbi). Training alternates between EM steps for the piece probabilities and pruning
of pieces. `trivium explain unigram` shows the steps.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import ClassVar, Literal

import tokenizers
from pydantic import Field
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers

from trivium.text.roles import TEXT_SPECIALS
from trivium.text.symbols import SCORE_DIGITS
from trivium.text.trainers import CharacterTokenizerConfig, SpecialTokens

_MAX_PIECE_LENGTH = 16  # characters, as in sentencepiece


class Unigram(CharacterTokenizerConfig):
    """Unigram language model of subwords: pieces with probabilities, learned from text.

    Text is normalized as in sentencepiece: with the rule `nmt_nfkc`, and with repeated spaces
    collapsed into one. As in sentencepiece, a space at the start of a text is dropped. Unlike in
    sentencepiece, a space after a special token is kept and starts a word.

    Source: Kudo 2018, section 3.2.
    """

    kind: Literal["unigram"] = "unigram"
    component_types: ClassVar[tuple[str, ...]] = ("Unigram",)
    seconds_per_mb: ClassVar[float] = 8.0
    prunes: ClassVar[bool] = True
    special_tokens: SpecialTokens = TEXT_SPECIALS
    sample_bytes: int = Field(
        30_000_000,
        gt=0,
        description="maximum number of bytes to train on; unless set, a budget in train.minutes "
        "limits it to 0.75 MB per minute",
    )
    keep: float = Field(
        0.75, gt=0, lt=1, description="fraction of the pieces that each round of pruning keeps"
    )

    def train_backend(self, texts: Sequence[str]) -> tokenizers.Tokenizer:
        """Train a Unigram tokenizer on texts: learn the pieces and their probabilities."""
        backend = tokenizers.Tokenizer(models.Unigram())
        backend.normalizer = normalizers.Sequence(
            [
                *([normalizers.Nmt(), normalizers.NFKC()] if self.normalize else []),
                normalizers.Replace(Regex(" {2,}"), " "),
                # Not on the left, because the space after a special token starts a word.
                normalizers.Strip(left=False, right=True),
            ]
        )
        backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
        backend.decoder = decoders.Metaspace(prepend_scheme="first")
        texts, alphabet = self.choose_alphabet(texts, backend.normalizer)
        self.run_trainer(
            backend,
            trainers.UnigramTrainer,
            texts,
            unk_token=self.unknown_token,
            shrinking_factor=self.keep,
            max_piece_length=_MAX_PIECE_LENGTH,
            initial_alphabet=alphabet,
        )
        return self._sort_pieces(backend)

    def _sort_pieces(self, backend: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
        """Sort the pieces by score, and keep as many as `vocab_size` allows. Returns the tokenizer.

        Single characters are always kept. The trainer also adds all characters of the alphabet that
        are not pieces. Their scores depend on a random order: the lowest score, plus 1e-4 for each
        character added before. Here, all of them get the lowest score.
        """
        content = json.loads(backend.to_str())
        count = len(self.special_tokens)
        pieces = content["model"]["vocab"][count:]
        lowest = min(score for _, score in pieces)
        for piece in pieces:
            steps = (piece[1] - lowest) * 1e4
            if len(piece[0]) == 1 and steps < len(pieces) and abs(steps - round(steps)) < 1e-4:
                piece[1] = lowest
            piece[1] = round(piece[1], SCORE_DIGITS)
        pieces.sort(key=lambda piece: (len(piece[0]) > 1, -piece[1], piece[0]))
        pieces = pieces[: self.size - count]
        pieces.sort(key=lambda piece: (-piece[1], piece[0]))
        content["model"]["vocab"][count:] = pieces
        return tokenizers.Tokenizer.from_str(json.dumps(content))
