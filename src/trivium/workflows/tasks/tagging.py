"""Tags of words: parts of speech, names of people and places."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from trivium.data import NO_LOSS, Examples
from trivium.data.labelled import (
    TaggedSentence,
    are_chunk_tags,
    read_tagged,
    repair_iob,
    tag_names,
)
from trivium.errors import DataError, RecipeError, did_you_mean
from trivium.evaluate.metrics import listing
from trivium.evaluate.mistakes import worst_mistakes
from trivium.evaluate.tagging_metrics import tagging_metrics
from trivium.interop.settings import Settings
from trivium.language_model import LanguageModel
from trivium.objectives import Objective
from trivium.objectives.tagging import Tagging
from trivium.spec import AnySpec, Head, TaggerHead
from trivium.text.inputs import encode_words, join_words
from trivium.workflows.tasks.base import Measured, Task
from trivium.workflows.tasks.head_forms import check_takes_heads, dense_forms, published_form


class TaggingTask(Task[TaggedSentence]):
    """The tag of every word, asked at its first token."""

    def read(
        self, paths: Sequence[str], like: Sequence[TaggedSentence] = ()
    ) -> list[TaggedSentence]:
        """Tagged sentences, chunk tags mended."""
        sentences = read_tagged(list(paths), column=self.section.column)
        if not self.section.repair_iob:
            return sentences
        if not are_chunk_tags(tag for sentence in sentences for tag in sentence.tags):
            return sentences
        return [dataclasses.replace(each, tags=repair_iob(each.tags)) for each in sentences]

    def settings(self, settings: Settings, train: Sequence[TaggedSentence]) -> Settings:
        """Names of the tags; of chunk tags also the I- of every B-, which a text may lack."""
        names = set(tag_names(train))
        if are_chunk_tags(names):
            names |= {f"I-{name[2:]}" for name in names if name.startswith("B-")} | {"O"}
        ordered = sorted(names, key=lambda name: (name != "O", name))
        return settings.with_labels(ordered).with_task("tagging")

    def heads(self, spec: AnySpec, settings: Settings) -> tuple[Head, ...]:
        """A tagger."""
        check_takes_heads(spec, "tagging")
        if spec.family == "encoder-decoder":
            raise RecipeError(
                "tagging needs hidden states of every word of a text: take an encoder (bert-mini), "
                "a recurrent model or a decoder."
            )
        forms = [
            TaggerHead(num_labels=len(settings.labels), dense=dense)
            for dense in (None, *dense_forms(spec)[:-1])
        ]
        return (published_form(spec, forms),)

    def objective(
        self, spec: AnySpec, settings: Settings, train: Sequence[TaggedSentence]
    ) -> Objective:
        """Cross-entropy of the tags."""
        if self.section.class_weights != "none":
            raise RecipeError("task.class_weights is for classification: leave it out.")
        return Tagging()

    def encode(self, model: LanguageModel, examples: Sequence[TaggedSentence]) -> Examples:
        """Words with their tags at their first tokens."""
        self.check(examples, model.settings)
        places = {name: number for number, name in enumerate(model.settings.labels)}
        tokenizer = model.text_tokenizer
        runs = encode_words(
            tokenizer, [each.words for each in examples], max_length=model.max_length
        )
        rows, labels = [], []
        for sentence, of_one in zip(examples, runs):
            for run in of_one:
                asked = [NO_LOSS] * len(run.ids)
                # Words that share a token: the first one's tag is asked.
                for place, tag in reversed(
                    list(zip(run.places, sentence.tags[run.start : run.stop]))
                ):
                    asked[place] = places[tag]
                rows.append(run.ids)
                labels.append(asked)
        return Examples({"input_ids": rows, "labels": labels}, pad_id=tokenizer.pad_id or 0)

    def measure(self, model: LanguageModel, examples: Sequence[TaggedSentence]) -> Measured:
        """F1 of chunks (seqeval), or accuracy and F1 of tags."""
        found = model.tag([list(each.words) for each in examples])
        gold = [list(each.tags) for each in examples]
        predicted = [[word.tag for word in sentence] for sentence in found]
        metrics = tagging_metrics(gold, predicted, names=model.settings.labels)
        flat = [
            (sentence.where_word(place), word, tag, answer)
            for sentence, answers in zip(examples, found)
            for place, (word, tag, answer) in enumerate(zip(sentence.words, sentence.tags, answers))
        ]
        mistakes = worst_mistakes(
            [tag for _, _, tag, _ in flat],
            [answer.tag for *_, answer in flat],
            [answer.score for *_, answer in flat],
            texts=[word for _, word, _, _ in flat],
            where=[where for where, *_ in flat],
        )
        answers = [
            {"words": list(sentence.words), "tags": right, "predicted": said}
            for sentence, right, said in zip(examples, gold, predicted)
        ]
        return Measured(metrics, mistakes, tuple(answers))

    def texts(self, examples: Sequence[TaggedSentence]) -> Iterator[str]:
        """Sentences as running text."""
        for example in examples:
            yield join_words(example.words)[0]

    def try_metrics(self, examples: Sequence[TaggedSentence], settings: Settings) -> None:
        """With the right tags."""
        gold = [list(each.tags) for each in examples]
        tagging_metrics(gold, gold, names=settings.labels)

    def check(self, examples: Sequence[TaggedSentence], settings: Settings) -> None:
        """Tags that the model does not know."""
        known = set(settings.labels)
        for sentence in examples:
            for place, tag in enumerate(sentence.tags):
                if tag not in known:
                    raise DataError(
                        f'{sentence.where_word(place)}: the tag "{tag}" is unknown to the model, '
                        f"which knows {listing(settings.labels)}.{did_you_mean(tag, known)}"
                    )
