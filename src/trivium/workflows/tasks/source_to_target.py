"""Any source -> target task: translation, text to text with prefixes, summaries."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from trivium.data import Examples
from trivium.data.labelled import PairSource, SourceTarget, read_pairs
from trivium.errors import RecipeError
from trivium.evaluate.generation_metrics import (
    exact_match_metrics,
    summary_metrics,
    translation_metrics,
)
from trivium.evaluate.metrics import Metrics
from trivium.evaluate.mistakes import Mistake
from trivium.inference.beam import Beams
from trivium.interop.settings import Settings
from trivium.language_model import LanguageModel
from trivium.objectives import Objective
from trivium.objectives.told_tokens import ToldTokens
from trivium.spec import AnySpec, Head
from trivium.workflows.tasks.base import Measured, Task
from trivium.workflows.tasks.targets import encode_targets

_METRICS = {"translation": "bleu", "summarization": "rouge", "text-to-text": "exact"}
_SHOWN = 20


class SourceToTarget(Task[SourceTarget]):
    """A target for every source, by an encoder-decoder; several tasks may be mixed by prefixes."""

    writes = True

    def read(self, paths: Sequence[str], like: Sequence[SourceTarget] = ()) -> list[SourceTarget]:
        """Pairs of aligned files, TSV or JSON lines; those of `data.mix` with theirs."""
        section = self.section
        sources = [
            PairSource(list(paths), section.prefix, section.source_field, section.target_field)
        ]
        if not like:
            sources += [mixed_source(given) for given in self.data.mix]
        else:
            sources += [
                mixed_source({**given, "paths": given["validation"]})
                for given in self.data.mix
                if given.get("validation")
            ]
        return read_pairs([source for source in sources if source.paths])

    def settings(self, settings: Settings, train: Sequence[SourceTarget]) -> Settings:
        """The prefix where all sources have the same, and how targets are searched for."""
        told = settings.with_task(
            self.section.kind, prefix="" if self.data.mix else self.section.prefix
        )
        search = {"num_beams": self.section.beams, "length_penalty": self.section.length_penalty}
        return Settings(
            {**told.generation, **search}, told.tokenizer, told.config, told.chat_template
        )

    def heads(self, spec: AnySpec, settings: Settings) -> tuple[Head, ...]:
        """That over the vocabulary."""
        heads = tuple(head for head in spec.heads if head.kind == "lm")
        if spec.family != "encoder-decoder" or not heads:
            raise RecipeError(
                f"{self.section.kind} needs an encoder and a decoder: take transformer-mini, "
                "t5-mini, bart-mini or a Marian model; a decoder is taught with lm."
            )
        return heads

    def objective(
        self, spec: AnySpec, settings: Settings, train: Sequence[SourceTarget]
    ) -> Objective:
        """Cross-entropy of the target, smoothed if the recipe says so."""
        return ToldTokens(smoothing=self.section.smoothing)

    def encode(self, model: LanguageModel, examples: Sequence[SourceTarget]) -> Examples:
        """Sources and first targets."""
        return encode_targets(model, [(each.source, each.targets[0]) for each in examples])

    def measure(self, model: LanguageModel, examples: Sequence[SourceTarget]) -> Measured:
        """BLEU and chrF, ROUGE, or exact matches; of several prefixes each by itself too."""
        beams = Beams(num_beams=self.section.beams, length_penalty=self.section.length_penalty)
        said = model.write_targets([each.source for each in examples], beams=beams)
        metrics = self._metrics(said, examples)
        figures: dict[str, float] = {}
        prefixes = dict.fromkeys(each.prefix for each in examples)
        if len(prefixes) > 1:
            for prefix in prefixes:
                chosen = [n for n, each in enumerate(examples) if each.prefix == prefix]
                part = self._metrics([said[n] for n in chosen], [examples[n] for n in chosen])
                name, value = part.main
                figures[f"{name} ({prefix.strip(': ') or 'no prefix'})"] = value
        mistakes = [
            Mistake(each.where, each.source, each.targets[0], text, 0.0)
            for each, text in zip(examples, said)
            if text.strip() not in each.targets
        ]
        answers = tuple(
            {"source": each.source, "target": each.targets[0], "predicted": text}
            for each, text in zip(examples, said)
        )
        return Measured(metrics, tuple(mistakes[:_SHOWN]), answers, figures)

    def _metrics(self, said: Sequence[str], examples: Sequence[SourceTarget]) -> Metrics:
        references = [list(each.targets) for each in examples]
        match self.section.metric or _METRICS[self.section.kind]:
            case "bleu":
                return translation_metrics(said, references, tokenizer=self.section.bleu_tokenizer)
            case "rouge":
                return summary_metrics(said, references)
        return exact_match_metrics([text.strip() for text in said], references)

    def try_metrics(self, examples: Sequence[SourceTarget], settings: Settings) -> None:
        """With the right targets."""
        self._metrics([each.targets[0] for each in examples], examples)

    def texts(self, examples: Sequence[SourceTarget]) -> Iterator[str]:
        """Sources and targets: one tokenizer for both."""
        for example in examples:
            yield example.source
            yield from example.targets

    def sources(self, examples: Sequence[SourceTarget]) -> Iterator[str]:
        """What the encoder reads."""
        return (example.source for example in examples)

    def targets(self, examples: Sequence[SourceTarget]) -> Iterator[str]:
        """What the decoder writes."""
        return (target for example in examples for target in example.targets)


def mixed_source(given: dict[str, Any]) -> PairSource:
    """A further source of a recipe. Raises RecipeError for keys there are not."""
    known = {"paths", "prefix", "source_field", "target_field"}
    unknown = given.keys() - known - {"validation"}
    if unknown or not given.get("paths"):
        wrong = f"unknown {sorted(unknown)}" if unknown else "no paths"
        raise RecipeError(
            f"data.mix: {wrong}; a source has paths, and may have validation, prefix, "
            "source_field and target_field."
        )
    paths = given["paths"]
    return PairSource(
        [paths] if isinstance(paths, str) else list(paths),
        given.get("prefix", ""),
        given.get("source_field"),
        given.get("target_field"),
    )
