"""What fine-tuning begins with: a model and its tokenizer, or a form of one and a new tokenizer."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trivium.errors import RecipeError, TriviumError, did_you_mean
from trivium.inference.saved import SOURCE_TOKENIZER
from trivium.interop.settings import Settings
from trivium.language_model import LanguageModel, load
from trivium.models import build
from trivium.presets import presets
from trivium.spec import AnySpec
from trivium.text import Tokenizer
from trivium.train import defaults
from trivium.train.finetune_recipe import FinetuneRecipe, NewTokenizerSection
from trivium.train.progress import ProgressLine
from trivium.train.run import RunFolder
from trivium.workflows.tasks import Task

_SEQ2SEQ_TOKENS = ("<pad>", "</s>", "<unk>", "<s>")


@dataclass(frozen=True)
class Beginning:
    """A model to teach; `scratch` where its weights are random."""

    model: LanguageModel
    scratch: bool


def begin(
    recipe: FinetuneRecipe,
    task: Task[Any],
    examples: Sequence[Any],
    run: RunFolder,
    line: ProgressLine,
) -> Beginning:
    """The model to start from, with a tokenizer.

    Raises:
        RecipeError: no such model, or one without a tokenizer.
    """
    section = recipe.model
    if section.start in presets and not Path(section.start).is_dir():
        return _preset(recipe, task, examples, run, line)
    if recipe.tokenizer != NewTokenizerSection():
        raise RecipeError(
            f"{section.start} has a tokenizer of its own: leave [tokenizer] out, which is for "
            "presets."
        )
    try:
        model = load(section.start, device="cpu")
    except TriviumError as error:
        if Path(section.start).exists():
            raise
        near = did_you_mean(section.start, presets)
        raise RecipeError(f"{error} Nor is it a preset (`trivium presets`).{near}") from None
    if model.tokenizer is None:
        raise RecipeError(
            f"{section.start}: this model has no tokenizer, without which no text can be read."
        )
    return Beginning(model, scratch=section.weights == "random")


def _preset(
    recipe: FinetuneRecipe,
    task: Task[Any],
    examples: Sequence[Any],
    run: RunFolder,
    line: ProgressLine,
) -> Beginning:
    spec, section = presets[recipe.model.start], recipe.tokenizer
    both = spec.family == "encoder-decoder"
    sources = None
    if section.separate:
        if not both or not task.writes:
            raise RecipeError(
                "tokenizer.separate is for sources and targets of an encoder-decoder: leave it "
                "out for this task or model."
            )
        new = _NewTokenizer(recipe, spec, "sources", line)
        kept = run.path / SOURCE_TOKENIZER
        sources = Tokenizer.load(kept) if kept.is_file() else new.train(task.sources(examples))
    texts = task.targets(examples) if section.separate else task.texts(examples)
    if section.path is not None:
        tokenizer = Tokenizer.load(section.path)
    elif run.tokenizer.is_file():
        tokenizer = Tokenizer.load(run.tokenizer)
    else:
        what = "targets" if section.separate else "examples"
        tokenizer = _NewTokenizer(recipe, spec, what, line).train(texts)
    sizes = {"vocab_size": _table_size(tokenizer)}
    if sources is not None:
        sizes["source_vocab_size"] = _table_size(sources)
    spec = spec.replace(**sizes)
    settings = Settings(generation=_start_and_end(tokenizer)) if both else Settings()
    module = build(spec, seed=recipe.seed)
    model = LanguageModel(spec, module, tokenizer, settings, own_source_tokenizer=sources)
    return Beginning(model, scratch=True)


def _table_size(tokenizer: Tokenizer) -> int:
    """Rows of a table of token vectors: a multiple of 64."""
    return math.ceil(tokenizer.vocab_size / 64) * 64


@dataclass(frozen=True)
class _NewTokenizer:
    """How a tokenizer is trained on the task's own text."""

    recipe: FinetuneRecipe
    spec: AnySpec
    what: str
    line: ProgressLine

    def train(self, texts: Iterable[str]) -> Tokenizer:
        """A tokenizer of these texts."""
        section, spec = self.recipe.tokenizer, self.spec
        listed = list(texts)
        both = spec.family == "encoder-decoder"
        size = section.vocab_size or defaults.vocabulary_size(spec, sum(map(len, listed)))
        kind = section.kind or ("unigram" if both else defaults.tokenizer_kind(spec, "task"))
        self.line.say(f"tokenizer  learning {size:,} {kind} tokens from the {self.what}")
        return Tokenizer.train(
            kind,
            texts=listed,
            vocab_size=size,
            special_tokens=_SEQ2SEQ_TOKENS if both else None,
            lowercase=section.lowercase,
            seed=self.recipe.seed,
            progress=self.line.say,
        )


def _start_and_end(tokenizer: Tokenizer) -> dict[str, Any]:
    """What a new encoder-decoder writes first and last, and fills rows up with."""
    found = {
        "decoder_start_token_id": next(
            (i for i in (tokenizer.bos_id, tokenizer.pad_id) if i is not None), None
        ),
        "eos_token_id": tokenizer.eos_id if tokenizer.eos_id is not None else tokenizer.sep_id,
        "pad_token_id": tokenizer.pad_id,
    }
    missing = [name for name, index in found.items() if index is None]
    if missing:
        raise RecipeError(
            f"this tokenizer tells no {missing[0].removesuffix('_id')}: give one with <pad>, </s> "
            "and <s>."
        )
    return found
