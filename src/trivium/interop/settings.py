"""The settings in a model folder: generation and tokenizer options, labels and tasks.

The files are those of `transformers`. A Trivium folder also has `hugging_face.json` with the
settings that `transformers` keeps in `config.json`.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from trivium.errors import CheckpointError
from trivium.files import write_file, write_json
from trivium.interop.hf_config import (
    GENERATION_KEYS,
    MODEL_KEYS,
    NOT_APPLIED,
    check_types,
    read_object_if_exists,
)

GENERATION, CHAT_TEMPLATE = "generation_config.json", "chat_template.jinja"
TOOL_TEMPLATE = "additional_chat_templates/tool_use.jinja"
TOKENIZER_OPTIONS, SPECIAL_TOKENS = "tokenizer_config.json", "special_tokens_map.json"
_CONFIG_OPTIONS = "hugging_face.json"
FILES = (GENERATION, TOKENIZER_OPTIONS, CHAT_TEMPLATE, _CONFIG_OPTIONS)
"""The files that `Settings.write` may write."""
MAX_TARGET = 256
"""The maximum number of tokens that an encoder-decoder generates, unless another limit is set."""

TEXT_TASKS = ("classification", "contrastive", "reward", "reranking")
"""Tasks on whole texts; decoders read these texts with BOS/EOS tokens, like documents."""

LabelKind = Literal["classes", "multi-label", "regression"]

_PROBLEM_TYPES: dict[LabelKind, str] = {
    "classes": "single_label_classification",
    "multi-label": "multi_label_classification",
    "regression": "regression",
}


@dataclass(frozen=True)
class Settings:
    """A model's settings for generation, tokenizer options, labels, tasks and chat template.

    Args:
        generation: the content of `generation_config.json`.
        tokenizer: the content of `tokenizer_config.json` and `special_tokens_map.json`.
        config: label names, ids of special tokens and tasks of a Hugging Face `config.json`.
        chat_template: the template in `chat_template.jinja` or an older `tokenizer_config.json`.
    """

    generation: Mapping[str, Any] = field(default_factory=dict)
    tokenizer: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    chat_template: str | None = None

    @classmethod
    def read(cls, folder: Path) -> Settings:
        """Read the settings from a Trivium model folder."""
        return cls._read_files(folder, config=read_object_if_exists(folder / _CONFIG_OPTIONS))

    @classmethod
    def read_hf(cls, folder: Path, options: Mapping[str, Any], *, generates: bool) -> Settings:
        """Read the settings from a Hugging Face folder. `options` is the parsed `config.json`.

        If the model can generate text (`generates`) and the folder has no
        `generation_config.json`, the generation options are read from `config.json`.
        """
        kept = {k: v for k, v in options.items() if k in MODEL_KEYS and v is not None}
        settings = cls._read_files(folder, config=kept)
        if not generates:
            return settings
        if not (folder / GENERATION).is_file():
            older = {k: v for k, v in options.items() if k in GENERATION_KEYS and v is not None}
            if options.get("force_bos_token_to_be_generated"):  # BART's first releases
                older.setdefault("forced_bos_token_id", older.get("bos_token_id"))
            check_types(older, folder)
            settings = replace(settings, generation=older)
        for name, neutral in NOT_APPLIED.items():
            if (value := settings.generation.get(name, neutral)) not in (None, neutral):
                warnings.warn(
                    f"{name} = {value} of the model's generation settings is kept but not applied.",
                    stacklevel=2,
                )
        return settings

    @classmethod
    def _read_files(cls, folder: Path, *, config: dict[str, Any]) -> Settings:
        """Read the settings files that Hugging Face and Trivium share. `config` is already read."""
        tokenizer = {
            **read_object_if_exists(folder / SPECIAL_TOKENS),
            **read_object_if_exists(folder / TOKENIZER_OPTIONS),
        }
        chat_template = _read_template(folder / CHAT_TEMPLATE)
        if chat_template is None:
            chat_template = _named_template(tokenizer, "default")
        if (tool_template := _read_template(folder / TOOL_TEMPLATE)) is not None:
            named = {"default": chat_template, "tool_use": tool_template}
            tokenizer["chat_template"] = [
                {"name": name, "template": template} for name, template in named.items() if template
            ]
        generation = read_object_if_exists(folder / GENERATION)
        for options in (generation, tokenizer, config):
            check_types(options, folder)
        return cls(generation, tokenizer, config, chat_template)

    def write(self, folder: Path) -> None:
        """Write each non-empty setting to its file, and delete the files of empty settings."""
        folder.mkdir(parents=True, exist_ok=True)
        contents = {
            GENERATION: self.generation,
            TOKENIZER_OPTIONS: self.tokenizer,
            _CONFIG_OPTIONS: self.config,
            CHAT_TEMPLATE: self.chat_template,
        }
        for name, content in contents.items():
            if not content:
                (folder / name).unlink(missing_ok=True)
            elif isinstance(content, str):
                write_file(folder / name, content)
            else:
                write_json(folder / name, dict(content))

    @property
    def tool_template(self) -> str | None:
        """The chat template for conversations with tools, if the model has a separate one."""
        if isinstance(self.tokenizer.get("chat_template"), list):
            return _named_template(self.tokenizer, "tool_use")
        return None

    @property
    def labels(self) -> tuple[str, ...]:
        """The label names, ordered by label index; empty if the model has none."""
        names = self.config.get("id2label") or {}
        return tuple(names[key] for key in sorted(names, key=int))

    @property
    def label_kind(self) -> LabelKind:
        """The kind of labels: "classes" (one per text), "multi-label" or "regression" (regression).

        The kind follows from `problem_type`. If it is unset, a single label means regression.
        """
        for kind, problem in _PROBLEM_TYPES.items():
            if self.config.get("problem_type") == problem:
                return kind
        return "regression" if len(self.labels) == 1 else "classes"

    @property
    def label_scale(self) -> tuple[float, float]:
        """Mean and standard deviation of regression labels: label = mean + deviation * logit.

        If the settings do not contain them, they are 0 and 1.
        """
        options = self.task_options("classification") if self.task == "classification" else {}
        scale = options.get("label_mean"), options.get("label_deviation")
        known = all(isinstance(one, int | float) for one in scale)
        return (float(scale[0]), float(scale[1])) if known else (0.0, 1.0)  # type: ignore[arg-type]

    def with_label_scale(self, mean: float, deviation: float) -> Settings:
        """Return a copy of the settings with this mean and standard deviation of the labels."""
        options = {**self.task_options("classification"), "label_mean": mean}
        return self.with_task("classification", **options | {"label_deviation": deviation})

    def with_labels(self, names: Sequence[str], kind: LabelKind = "classes") -> Settings:
        """Return a copy of the settings with label names and the kind of labels."""
        labels = {
            "id2label": {str(number): name for number, name in enumerate(names)},
            "label2id": {name: number for number, name in enumerate(names)},
            "problem_type": _PROBLEM_TYPES[kind],
        }
        return replace(self, config={**self.config, **labels})

    def task_options(self, task: str) -> Mapping[str, Any]:
        """Return the options of a task in Hugging Face's `task_specific_params`, or {}."""
        return (self.config.get("task_specific_params") or {}).get(task, {})

    @property
    def reads_pairs(self) -> bool | None:
        """Whether a classifier was fine-tuned on text pairs; None if mixed or unknown."""
        pairs = self.task_options("classification").get("pairs")
        return pairs if isinstance(pairs, bool) else None

    @property
    def pooling(self) -> Any:
        """How hidden states are pooled to an embedding; None if the task is not "contrastive"."""
        task = "contrastive"
        return self.task_options(task).get("pooling") if self.task == task else None

    @property
    def normalizes(self) -> bool:
        """Whether `embed` scales embeddings to length 1 by default."""
        return self.pooling is None or self.task_options("contrastive").get("normalize", True)

    @property
    def task(self) -> str | None:
        """The task of `trivium finetune` that the model was fine-tuned for; None if unknown."""
        task = self.config.get("finetuning_task")
        return task if task in (self.config.get("task_specific_params") or {}) else None

    @property
    def uses_document_tokens(self) -> bool:
        """Whether Trivium fine-tuned the model on texts wrapped in BOS/EOS (document) tokens."""
        task = self.task
        return task in TEXT_TASKS and self.task_options(task).get("as_documents") is not False

    @property
    def task_prefixes(self) -> tuple[str, ...]:
        """The task prefixes, one of which begins every source text; ("",) if there are none."""
        task_prefixes = self.task_options(self.task or "").get("prefixes")
        return tuple(map(str, task_prefixes)) if isinstance(task_prefixes, list) else ("",)

    def with_task(self, task: str, **options: Any) -> Settings:
        """Return a copy of the settings for a model fine-tuned for `task` with these options."""
        tasks = {**(self.config.get("task_specific_params") or {}), task: options}
        changes = {"finetuning_task": task, "task_specific_params": tasks}
        return replace(self, config={**self.config, **changes})

    @property
    def banned_ids(self) -> frozenset[int]:
        """The token ids that are never generated (`bad_words_ids` and `suppress_tokens`).

        Raises CheckpointError if a word in `bad_words_ids` has more than one token.
        """
        words = self.generation.get("bad_words_ids") or []
        for word in words:
            if len(word) != 1:
                raise CheckpointError(
                    f"{GENERATION}: bad_words_ids has {word}, but only words of one token can be "
                    "forbidden: remove it from the file to generate without this rule."
                )
        return frozenset(
            [*(word[0] for word in words), *(self.generation.get("suppress_tokens") or [])]
        )

    @property
    def decoder_start(self) -> tuple[int, ...]:
        """A tuple with the id of the decoder start token (or else BOS); empty if both are unset."""
        return (self.ids("decoder_start_token_id") or self.ids("bos_token_id"))[:1]

    def ids(self, name: str) -> tuple[int, ...]:
        """Return the token ids that an option such as eos_token_id sets; () if it is unset."""
        value = self.generation.get(name)
        value = self.config.get(name) if value is None else value
        return () if value is None else tuple(value) if isinstance(value, list) else (value,)


def _read_template(path: Path) -> str | None:
    """Return the text of a file with a chat template, or None if there is no such file."""
    try:
        return path.read_text(encoding="utf-8") if path.is_file() else None
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{path} is not UTF-8: {error}.") from None


def _named_template(tokenizer: Mapping[str, Any], name: str) -> str | None:
    """Return a chat template in `tokenizer_config.json`, where older models have it, or None.

    If there are several templates, returns the one with this name.
    """
    template = tokenizer.get("chat_template")
    if isinstance(template, list):
        each_with_name = [each for each in template if isinstance(each, Mapping)]
        named = {str(each.get("name")): each.get("template") for each in each_with_name}
        template = named.get(name)
    return template if isinstance(template, str) else None
