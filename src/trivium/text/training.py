"""Learning a vocabulary: the five kinds of tokenizer as pipelines of the `tokenizers` library.

- whitespace: words between spaces, the most frequent ones.
- bpe: Sennrich et al. 2016 on characters; a space is written U+2581 before the word, line ends and
  punctuation stand alone.
- byte-bpe: Radford et al. 2019 (GPT-2) on bytes; no unknown token, every text round-trips.
- unigram: Kudo 2018 with sentencepiece's normalisation (NFKC, runs of space joined).
- wordpiece: BERT's normaliser and splits (Devlin et al. 2018). The library merges the most frequent
  pair, where the original WordPiece took the pair that raises the likelihood most.
"""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import tokenizers
from tokenizers import (
    AddedToken,
    Regex,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from trivium.errors import DataError, TokenizerError, did_you_mean
from trivium.text.roles import token_of_role
from trivium.text.sampling import Pieces, sample_files, sample_texts
from trivium.text.symbols import SCORE_DIGITS, WORDPIECE_PREFIX, is_word_alone

KINDS = ("whitespace", "bpe", "byte-bpe", "unigram", "wordpiece")
BERT_SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
TEXT_SPECIALS = ("<pad>", "<unk>", "<s>", "</s>", "<mask>")
DEFAULT_SPECIALS = {
    "whitespace": TEXT_SPECIALS,
    "bpe": TEXT_SPECIALS,
    "byte-bpe": ("<|endoftext|>",),
    "unigram": TEXT_SPECIALS,
    "wordpiece": BERT_SPECIALS,
}
DEFAULT_MIN_FREQUENCY = 2
LONGEST_PIECE = 16  # characters, as in sentencepiece


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """What is to be trained."""

    kind: str
    vocab_size: int
    specials: tuple[str, ...]
    unknown: str | None
    lowercase: bool
    min_frequency: int
    show_progress: bool


def train_backend(
    kind: str,
    files: Iterable[str | Path] | str | Path | None,
    texts: Iterable[str] | None,
    *,
    vocab_size: int,
    special_tokens: Sequence[str] | None,
    lowercase: bool,
    min_frequency: int | None,
    character_coverage: float,
    sample_bytes: int,
    seed: int,
    progress: bool | Callable[[str], None],
) -> tokenizers.Tokenizer:
    """Train; see `Tokenizer.train` for what the arguments mean."""
    plan = _plan(
        kind,
        vocab_size=vocab_size,
        special_tokens=special_tokens,
        lowercase=lowercase,
        min_frequency=min_frequency,
        progress=progress,
    )
    if not 0.0 < character_coverage <= 1.0:
        raise TokenizerError(
            f"character_coverage is a share above 0 and at most 1, not {character_coverage}."
        )
    if sample_bytes < 1:
        raise TokenizerError(f"sample_bytes must be at least 1, not {sample_bytes}.")
    pieces = _sample(files, texts, sample_bytes, seed)
    backend = _pipeline(plan)
    characters: list[str] = []
    if plan.kind in ("bpe", "unigram", "wordpiece"):
        characters, pieces = _cover(plan, backend, pieces, character_coverage)
    _train(plan, backend, pieces, characters)
    backend = _finish(plan, backend)
    _report(plan, backend, progress)
    return backend


def _plan(
    kind: str,
    *,
    vocab_size: int,
    special_tokens: Sequence[str] | None,
    lowercase: bool,
    min_frequency: int | None,
    progress: bool | Callable[[str], None],
) -> Plan:
    if kind not in KINDS:
        raise TokenizerError(
            f"There is no tokenizer kind {kind!r}; the kinds are {', '.join(KINDS)}."
            + did_you_mean(kind, KINDS)
        )
    if isinstance(special_tokens, str):
        raise TokenizerError("special_tokens is a list of tokens, not one string.")
    specials = tuple(DEFAULT_SPECIALS[kind] if special_tokens is None else special_tokens)
    if len(set(specials)) < len(specials) or "" in specials:
        raise TokenizerError(f"Special tokens must differ and not be empty: {' '.join(specials)}.")
    unknown = token_of_role("unk", specials)
    if unknown is None and kind != "byte-bpe":
        raise TokenizerError(
            f"A {kind} tokenizer needs a token for what it cannot write: add [UNK] or <unk> to the "
            f"special tokens ({' '.join(specials) or 'none given'})."
        )
    if kind == "byte-bpe" and vocab_size < 256 + len(specials):
        raise TokenizerError(
            f"A byte-bpe vocabulary needs at least {256 + len(specials)} tokens: 256 bytes and "
            f"{len(specials)} special tokens. It was given {vocab_size}."
        )
    if vocab_size <= len(specials):
        raise TokenizerError(
            f"A vocabulary of {vocab_size} has no room beside {len(specials)} special tokens."
        )
    if min_frequency is None:
        min_frequency = 1 if kind == "whitespace" else DEFAULT_MIN_FREQUENCY
    return Plan(
        kind=kind,
        vocab_size=vocab_size,
        specials=specials,
        unknown=unknown,
        lowercase=lowercase,
        min_frequency=min_frequency,
        show_progress=progress is not False and sys.stderr.isatty(),
    )


def _sample(
    files: Iterable[str | Path] | str | Path | None,
    texts: Iterable[str] | None,
    sample_bytes: int,
    seed: int,
) -> Pieces:
    if (files is None) == (texts is None):
        raise TokenizerError("Give the text to learn from as files or as texts, one of the two.")
    if files is not None:
        named = [files] if isinstance(files, str | Path) else files
        paths = [Path(name) for name in named]
        pieces = sample_files(paths, sample_bytes, seed)
    else:
        assert texts is not None
        if isinstance(texts, str):
            raise TokenizerError("texts is a list or iterator of texts, not one string.")
        pieces = sample_texts(texts, sample_bytes, seed)
    if not any(piece.strip() for piece in pieces()):
        raise DataError("There is no text to learn a vocabulary from.")
    return pieces


def _pipeline(plan: Plan) -> tokenizers.Tokenizer:
    """An untrained tokenizer of the kind."""
    if plan.kind == "wordpiece":
        backend = tokenizers.Tokenizer(models.WordPiece(unk_token=plan.unknown))
        backend.normalizer = normalizers.BertNormalizer(lowercase=plan.lowercase)
        backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        backend.decoder = decoders.WordPiece(prefix=WORDPIECE_PREFIX)
    elif plan.kind == "byte-bpe":
        backend = tokenizers.Tokenizer(models.BPE())
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        backend.decoder = decoders.ByteLevel()
        backend.post_processor = processors.ByteLevel(trim_offsets=True)
    elif plan.kind == "bpe":
        backend = tokenizers.Tokenizer(models.BPE(unk_token=plan.unknown, fuse_unk=True))
        backend.normalizer = normalizers.NFC()
        backend.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Metaspace(prepend_scheme="first"),
                pre_tokenizers.Split(Regex(r"[\r\n]+"), behavior="isolated"),
                pre_tokenizers.Punctuation(),
            ]
        )
        backend.decoder = decoders.Metaspace(prepend_scheme="first")
    elif plan.kind == "unigram":
        backend = tokenizers.Tokenizer(models.Unigram())
        backend.normalizer = normalizers.Sequence(
            [
                normalizers.Nmt(),
                normalizers.NFKC(),
                normalizers.Replace(Regex(" {2,}"), " "),
                # Not the left: what follows a special token keeps its space, the start of a word.
                normalizers.Strip(left=False, right=True),
            ]
        )
        backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
        backend.decoder = decoders.Metaspace(prepend_scheme="first")
    else:
        backend = tokenizers.Tokenizer(models.WordLevel(unk_token=plan.unknown))
        backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return backend


def _special_tokens(plan: Plan) -> list[AddedToken]:
    """The special tokens; a mask takes the space before it where spaces belong to the word."""
    mask = token_of_role("mask", plan.specials)
    spaced = plan.kind in ("bpe", "byte-bpe", "unigram")
    return [
        AddedToken(token, normalized=False, special=True, lstrip=spaced and token == mask)
        for token in plan.specials
    ]


def _train(
    plan: Plan, backend: tokenizers.Tokenizer, pieces: Pieces, characters: Sequence[str]
) -> None:
    specials = _special_tokens(plan)
    if plan.kind == "whitespace":
        trainer = trainers.WordLevelTrainer(
            vocab_size=plan.vocab_size,
            min_frequency=plan.min_frequency,
            special_tokens=specials,
            show_progress=plan.show_progress,
        )
    elif plan.kind == "unigram":
        trainer = trainers.UnigramTrainer(
            vocab_size=plan.vocab_size,
            special_tokens=specials,
            unk_token=plan.unknown,
            max_piece_length=LONGEST_PIECE,
            show_progress=plan.show_progress,
        )
    elif plan.kind == "wordpiece":
        # The library numbers the ## characters at random, and ties between merges with them;
        # named here as special tokens they have fixed places.
        inner = [WORDPIECE_PREFIX + c for c in characters if not is_word_alone(c)]
        trainer = trainers.WordPieceTrainer(
            vocab_size=plan.vocab_size,
            min_frequency=plan.min_frequency,
            special_tokens=[*specials, *inner],
            continuing_subword_prefix=WORDPIECE_PREFIX,
            show_progress=plan.show_progress,
        )
    else:
        alphabet = pre_tokenizers.ByteLevel.alphabet() if plan.kind == "byte-bpe" else []
        trainer = trainers.BpeTrainer(
            vocab_size=plan.vocab_size,
            min_frequency=plan.min_frequency,
            special_tokens=specials,
            initial_alphabet=sorted(alphabet),
            show_progress=plan.show_progress,
        )
    try:
        backend.train_from_iterator(pieces(), trainer)
    except TokenizerError:
        raise
    except Exception as error:
        raise TokenizerError(
            f"No {plan.kind} vocabulary could be learned from this text ({error}). "
            "Give more text or another kind."
        ) from error


def _cover(
    plan: Plan, backend: tokenizers.Tokenizer, pieces: Pieces, character_coverage: float
) -> tuple[list[str], Pieces]:
    """Leave out the rarest characters, and refuse a size that cannot hold the rest.

    Returns the sorted characters as the normaliser writes them, and the text without the others.

    A rare character becomes a space, so that the words around it are not joined.
    """
    counts = _character_counts(pieces())
    normalise = backend.normalizer.normalize_str if backend.normalizer else str
    forms = {character: normalise(f"a{character}a").strip() for character in counts}
    totals: dict[str, int] = {}
    for character, count in counts.items():
        for form in set(forms[character][1:-1]) - {" "}:
            totals[form] = totals.get(form, 0) + count
    ranked = sorted(totals, key=lambda form: (-totals[form], form))
    wanted = character_coverage * sum(totals.values())
    kept: set[str] = set()
    covered = 0
    for form in ranked:
        if covered >= wanted:
            break
        kept.add(form)
        covered += totals[form]
    _check_alphabet(plan, len(kept))
    rare = [c for c in counts if any(form not in kept for form in set(forms[c][1:-1]) - {" "})]
    if not rare:
        return sorted(kept), pieces
    hidden = re.compile("[" + re.escape("".join(rare)) + "]")
    return sorted(kept), lambda: (hidden.sub(" ", piece) for piece in pieces())


def _check_alphabet(plan: Plan, characters: int) -> None:
    """Raise where the characters alone, each one token at least, do not fit beside the specials."""
    spaces = 0 if plan.kind == "wordpiece" else 1
    _check_room(plan, characters + spaces + len(plan.specials), "at least ")


def _check_room(plan: Plan, needed: int, least: str = "") -> None:
    if needed > plan.vocab_size:
        raise TokenizerError(
            f"A {plan.kind} vocabulary of {plan.vocab_size} cannot hold the alphabet of this text: "
            f"{least}{needed} tokens are needed, {len(plan.specials)} of them special. "
            "Give a larger size, or byte-bpe, whose alphabet is 256 bytes."
        )


def _character_counts(pieces: Iterator[str]) -> dict[str, int]:
    """How often each character occurs, counted in stretches of about four million."""
    totals = np.zeros(0x110000, dtype=np.int64)
    waiting: list[str] = []
    size = 0
    for piece in pieces:
        waiting.append(piece)
        size += len(piece)
        if size > 1 << 22:
            totals += _count("".join(waiting))
            waiting, size = [], 0
    totals += _count("".join(waiting))
    return {chr(code): int(totals[code]) for code in np.flatnonzero(totals)}


def _count(text: str) -> np.ndarray:
    codes = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)
    return np.bincount(codes, minlength=0x110000)


def _finish(plan: Plan, backend: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """Settle the vocabulary and add the post-processor."""
    if plan.kind in ("bpe", "wordpiece"):
        # With no room for a merge the library lets the alphabet exceed the size.
        _check_room(plan, backend.get_vocab_size())
    if plan.kind == "unigram":
        backend = _settle_unigram(plan, backend)
    elif plan.kind == "wordpiece":
        backend = _settle_wordpiece(plan, backend)
    first, last = (token_of_role(role, plan.specials) for role in ("cls", "sep"))
    if first is not None and last is not None:
        backend.post_processor = template(backend, first, last)
    return backend


def template(backend: tokenizers.Tokenizer, first: str, last: str) -> processors.TemplateProcessing:
    """BERT's frame: [CLS] A [SEP], and B [SEP] with type 1 after it for a pair."""
    return processors.TemplateProcessing(
        single=f"{first}:0 $A:0 {last}:0",
        pair=f"{first}:0 $A:0 {last}:0 $B:1 {last}:1",
        special_tokens=[(token, backend.token_to_id(token)) for token in (first, last)],
    )


def _settle_wordpiece(plan: Plan, backend: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """Order the vocabulary as special tokens, characters, ## characters, then learned tokens."""
    content = json.loads(backend.to_str())
    count = len(plan.specials)
    content["added_tokens"] = content["added_tokens"][:count]
    vocabulary = content["model"]["vocab"]
    learned = sorted(vocabulary, key=lambda token: vocabulary[token])[count:]
    single = [token for token in learned if len(token.removeprefix(WORDPIECE_PREFIX)) == 1]
    single.sort(key=lambda token: (token.startswith(WORDPIECE_PREFIX), token))
    longer = [token for token in learned if len(token.removeprefix(WORDPIECE_PREFIX)) != 1]
    order = [*plan.specials, *single, *longer]
    content["model"]["vocab"] = {token: index for index, token in enumerate(order)}
    return tokenizers.Tokenizer.from_str(json.dumps(content))


def _settle_unigram(plan: Plan, backend: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """Bring the pieces to one order and to the size asked for; characters stay in any case.

    Characters that are no piece of the trained model get its least score from the trainer, plus a
    ten-thousandth for each one before it, in random order; here all get the least score.
    """
    content = json.loads(backend.to_str())
    count = len(plan.specials)
    pieces = content["model"]["vocab"][count:]
    least = min(score for _, score in pieces)
    for piece in pieces:
        steps = (piece[1] - least) * 1e4
        if len(piece[0]) == 1 and steps < len(pieces) and abs(steps - round(steps)) < 1e-4:
            piece[1] = least
        piece[1] = round(piece[1], SCORE_DIGITS)
    pieces.sort(key=lambda entry: (len(entry[0]) > 1, -entry[1], entry[0]))
    pieces = pieces[: plan.vocab_size - count]
    pieces.sort(key=lambda entry: (-entry[1], entry[0]))
    content["model"]["vocab"][count:] = pieces
    return tokenizers.Tokenizer.from_str(json.dumps(content))


def _report(
    plan: Plan, backend: tokenizers.Tokenizer, progress: bool | Callable[[str], None]
) -> None:
    """Say so where the text gave fewer tokens than were asked for."""
    size = backend.get_vocab_size()
    if size >= plan.vocab_size or progress is False:
        return
    line = f"Vocabulary: {size} tokens instead of {plan.vocab_size}; the text gives no more."
    if callable(progress):
        progress(line)
    else:
        print(line, file=sys.stderr)
