"""What travels with a model's weights: generation settings, tokenizer options, names of labels.

In a folder of ours these are the files that `transformers` has too, and `hugging_face.json` for
what it keeps in `config.json` and what says nothing about the numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from trivium.interop.plain_files import read_json_if_there, to_json
from trivium.files import write_file

GENERATION, CHAT_TEMPLATE = "generation_config.json", "chat_template.jinja"
TOKENIZER_OPTIONS, SPECIAL_TOKENS = "tokenizer_config.json", "special_tokens_map.json"
_KEPT_FILE = "hugging_face.json"
FILES = (GENERATION, TOKENIZER_OPTIONS, CHAT_TEMPLATE, _KEPT_FILE)
"""The files of settings in a folder of ours."""

# Of config.json: what names things, ids of special tokens, and the context a model with rotary
# positions was trained at.
_KEPT = frozenset(
    {
        "bos_token_id",
        "decoder_start_token_id",
        "eos_token_id",
        "finetuning_task",
        "forced_bos_token_id",
        "forced_eos_token_id",
        "id2label",
        "label2id",
        "max_position_embeddings",
        "pad_token_id",
        "problem_type",
        "task_specific_params",
    }
)
# What older files keep in config.json of how to generate.
_GENERATION_KEYS = frozenset(
    {
        "bad_words_ids",
        "begin_suppress_tokens",
        "bos_token_id",
        "decoder_start_token_id",
        "do_sample",
        "early_stopping",
        "eos_token_id",
        "forced_bos_token_id",
        "forced_eos_token_id",
        "length_penalty",
        "max_length",
        "min_length",
        "no_repeat_ngram_size",
        "num_beams",
        "pad_token_id",
        "repetition_penalty",
        "suppress_tokens",
        "temperature",
        "top_k",
        "top_p",
    }
)

# Their `problem_type`, and what we call the kind of labels.
_KINDS = {
    "single_label_classification": "classes",
    "multi_label_classification": "multi-label",
    "regression": "numbers",
}


@dataclass(frozen=True)
class Settings:
    """What travels with a model's weights.

    Args:
        generation: the content of `generation_config.json`.
        tokenizer: that of `tokenizer_config.json`, with the roles of `special_tokens_map.json`.
        config: names of labels and ids of special tokens of a Hugging Face `config.json`.
        chat_template: that of `chat_template.jinja`, or of older `tokenizer_config.json`.
    """

    generation: Mapping[str, Any] = field(default_factory=dict)
    tokenizer: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    chat_template: str | None = None

    @classmethod
    def read(cls, folder: Path) -> Settings:
        """The settings in a folder of ours."""
        return cls._beside(folder, config=read_json_if_there(folder / _KEPT_FILE))

    @classmethod
    def of_hugging_face(cls, folder: Path, options: Mapping[str, Any], *, writes: bool) -> Settings:
        """The settings in a folder of theirs, whose `config.json` has `options`.

        Old ones say there how a model that `writes` generates.
        """
        kept = {k: v for k, v in options.items() if k in _KEPT and v is not None}
        return cls._beside(folder, config=kept, older=options if writes else None)

    @classmethod
    def _beside(
        cls, folder: Path, *, config: dict[str, Any], older: Mapping[str, Any] | None = None
    ) -> Settings:
        generation = read_json_if_there(folder / GENERATION)
        if not generation and older:
            found = {k: v for k, v in older.items() if k in _GENERATION_KEYS and v is not None}
            generation = found
        tokenizer = {
            **read_json_if_there(folder / SPECIAL_TOKENS),
            **read_json_if_there(folder / TOKENIZER_OPTIONS),
        }
        template = folder / CHAT_TEMPLATE
        chat_template = _older_template(tokenizer)
        if template.is_file():
            chat_template = template.read_text(encoding="utf-8")
        return cls(generation, tokenizer, config, chat_template)

    def write(self, folder: Path) -> None:
        """Write the files there is something for; older ones of the others go."""
        folder.mkdir(parents=True, exist_ok=True)
        contents = (
            (GENERATION, to_json(self.generation) if self.generation else None),
            (TOKENIZER_OPTIONS, to_json(self.tokenizer) if self.tokenizer else None),
            (_KEPT_FILE, to_json(self.config) if self.config else None),
            (CHAT_TEMPLATE, self.chat_template),
        )
        for name, content in contents:
            if content is None:
                (folder / name).unlink(missing_ok=True)
            else:
                write_file(folder / name, content)

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the labels in the order of their numbers; empty where none are told."""
        names = self.config.get("id2label") or {}
        return tuple(names[key] for key in sorted(names, key=int))

    @property
    def label_kind(self) -> str:
        """ "classes", "multi-label" or "numbers".

        Unless told otherwise a single label is a number, several are classes.
        """
        usual = "numbers" if len(self.labels) == 1 else "classes"
        return _KINDS.get(str(self.config.get("problem_type")), usual)

    def with_labels(self, names: Sequence[str], kind: str = "classes") -> Settings:
        """The settings of a model whose labels have these names."""
        told = {
            "id2label": {str(number): name for number, name in enumerate(names)},
            "label2id": {name: number for number, name in enumerate(names)},
        }
        problem = next((theirs for theirs, ours in _KINDS.items() if ours == kind), None)
        return replace(self, config={**self.config, **told, "problem_type": problem})

    def task_options(self, task: str) -> Mapping[str, Any]:
        """How a task is asked of this model (`task_specific_params` of theirs)."""
        return (self.config.get("task_specific_params") or {}).get(task, {})

    @property
    def taught_task(self) -> str | None:
        """The task that `trivium finetune` taught, by its name there."""
        told = self.config.get("finetuning_task")
        return told if told in (self.config.get("task_specific_params") or {}) else None

    def with_task(self, task: str, **options: Any) -> Settings:
        """The settings of a model that was taught a task in a certain form."""
        tasks = {**(self.config.get("task_specific_params") or {}), task: options}
        told = {"finetuning_task": task, "task_specific_params": tasks}
        return replace(self, config={**self.config, **told})

    @property
    def stop_ids(self) -> frozenset[int]:
        """The ids that end a generated text."""
        found = self._id("eos_token_id")
        return frozenset(found if isinstance(found, list) else [] if found is None else [found])

    @property
    def banned_ids(self) -> frozenset[int]:
        """The ids that are never generated: forbidden words of one token, and suppressed ones."""
        words = self.generation.get("bad_words_ids") or []
        alone = [word[0] for word in words if len(word) == 1]
        return frozenset([*alone, *(self.generation.get("suppress_tokens") or [])])

    @property
    def decoder_start(self) -> tuple[int, ...]:
        """The ids with which the decoder of an encoder-decoder begins; empty where none is told."""
        start = self._id("decoder_start_token_id")
        start = self._id("bos_token_id") if start is None else start
        if start is None:
            return ()
        first = self._id("forced_bos_token_id")
        starts = start if isinstance(start, list) else [start]
        return (*starts[:1], *([] if first is None else [first]))

    @property
    def forced_end(self) -> int | None:
        """What is chosen at the last place of a text; None: nothing."""
        found = self._id("forced_eos_token_id")
        return found[0] if isinstance(found, list) else found

    def _id(self, name: str) -> Any:
        value = self.generation.get(name)
        return self.config.get(name) if value is None else value


def _older_template(tokenizer: Mapping[str, Any]) -> str | None:
    """The chat template in the options of a tokenizer: a text, or several with names."""
    found = tokenizer.get("chat_template")
    if isinstance(found, list):
        named = {each.get("name"): each.get("template") for each in found}
        found = named.get("default")
    return found if isinstance(found, str) else None
