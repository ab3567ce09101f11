"""The options of a `config.json`, read strictly: one that no table names is an error.

What they mean is in `spec_config`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from trivium.errors import CheckpointError, DataError
from trivium.files import read_json

# Options that `transformers` writes for every model and that do not change its logits.
_WITHOUT_EFFECT_NAMES = """
_attn_implementation _attn_implementation_autoset _commit_hash _name_or_path _num_labels
architectures attn_implementation bad_words_ids begin_suppress_tokens bos_token_id
chunk_size_feed_forward cls_token_id decoder_start_token_id diversity_penalty do_sample dtype
early_stopping encoder_no_repeat_ngram_size eos_token_id eos_token_ids
exponential_decay_length_penalty finetuning_task forced_bos_token_id forced_eos_token_id
gradient_checkpointing id2label initializer_factor initializer_range is_encoder_decoder label2id
length_penalty max_length min_length model_type no_repeat_ngram_size num_beam_groups num_beams
num_labels num_return_sequences output_attentions output_hidden_states output_past output_scores
pad_token_id prefix prefix_token_id pretraining_tp problem_type pruned_heads
remove_invalid_values repetition_penalty return_dict return_dict_in_generate sep_token_id
suppress_tokens task_specific_params temperature tf_legacy_loss tie_encoder_decoder
tokenizer_class top_k top_p torch_dtype torchscript trained_length transformers.js_config
transformers_version typical_p use_bfloat16 use_cache
"""
_WITHOUT_EFFECT = frozenset(_WITHOUT_EFFECT_NAMES.split())


class ConfigReader:
    """The options of a `config.json`, each to be read by name; null counts as missing.

    `weights` are the names of the tensors in the file, which some options depend on.

    >>> config = ConfigReader({"model_type": "bert", "hidden_size": 256, "colour": "blue"})
    >>> config.require("hidden_size")
    256
    >>> config.finish()
    Traceback (most recent call last):
    trivium.errors.CheckpointError: config.json: "colour" is 'blue', which is not...
    """

    def __init__(self, options: Mapping[str, Any], weights: Collection[str] = ()) -> None:
        self.weights = weights
        self._options = {name: value for name, value in options.items() if value is not None}
        self._known: set[str] = set()

    @property
    def num_labels(self) -> int | None:
        """How many labels the config names; where it counts them too, the count is believed."""
        count = self._options.get("num_labels") or len(self._options.get("id2label") or {})
        return int(count) or None

    def get(self, name: str, default: Any = None) -> Any:
        """The value of an option, or the default."""
        self._known.add(name)
        return self._options.get(name, default)

    def require(self, name: str, default: Any = None) -> Any:
        """As `get`. Raises CheckpointError where there is neither value nor default."""
        value = self.get(name, default)
        if value is None:
            raise CheckpointError(
                f'config.json: "{name}" is missing, which {self._model_type} needs.'
            )
        return value

    def choose(self, name: str, values: Mapping[Any, Any], default: Any = None) -> Any:
        """Translate the value of an option. Raises CheckpointError for one not in the table."""
        value = self.require(name, default)
        if not isinstance(value, str | bool | int) or value not in values:
            raise self.unsupported(name, *values)
        return values[value]

    def expect(self, name: str, *allowed: Any) -> None:
        """Refuse any value but the allowed ones."""
        if self.get(name, allowed[0]) not in allowed:
            raise self.unsupported(name, *allowed)

    def ignore(self, *names: str) -> None:
        """Name options without effect on the logits."""
        self._known.update(names)

    def unsupported(self, name: str, *allowed: Any, expected: str = "") -> CheckpointError:
        """The error for a value that is not supported; the allowed ones, or `expected` in words."""
        expected = expected or ", ".join(map(repr, allowed))
        known = f"; supported: {expected}" if expected else ""
        return CheckpointError(
            f'config.json: "{name}" is {self._options.get(name)!r}, which is not supported for '
            f"{self._model_type}{known}."
        )

    def finish(self) -> None:
        """Refuse options that were not read."""
        for name in sorted(self._options.keys() - self._known - _WITHOUT_EFFECT):
            raise self.unsupported(name)

    @property
    def _model_type(self) -> str:
        return str(self._options.get("model_type", "this model"))


def read_object(file: Path) -> dict[str, Any]:
    """The object in a JSON file of a model folder. Raises CheckpointError where there is none."""
    try:
        value = read_json(file)
    except DataError as error:
        raise CheckpointError(str(error)) from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{file}: JSON, but not an object with names and values.")
    return value


def read_object_if_exists(file: Path) -> dict[str, Any]:
    """The same, empty where there is no such file."""
    return read_object(file) if file.is_file() else {}
