"""Read a `config.json` strictly: an unknown option causes a warning or an error.

`spec_config` translates the options into a `TransformerSpec`.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from trivium.config import expected
from trivium.errors import CheckpointError, DataError, shorten
from trivium.files import read_json

# Types that several options share.
_TokenIds = int | list[int] | None
_Count = Annotated[int, Field(ge=0)] | None
_Number = Annotated[float, Field(allow_inf_nan=False)] | None


class _GenerationTypes(BaseModel):
    """The types of generation options (in `generation_config.json` or an older `config.json`)."""

    model_config = ConfigDict(extra="ignore", strict=True)

    bad_words_ids: list[list[int]] | None = None
    suppress_tokens: list[int] | None = None
    begin_suppress_tokens: list[int] | None = None
    bos_token_id: _TokenIds = None
    eos_token_id: _TokenIds = None
    pad_token_id: Any = None
    decoder_start_token_id: _TokenIds = None
    forced_bos_token_id: _TokenIds = None
    forced_eos_token_id: _TokenIds = None
    max_length: _Count = None
    max_new_tokens: _Count = None
    min_length: _Count = None
    min_new_tokens: _Count = None
    num_beams: _Count = None
    early_stopping: bool | Literal["never"] | None = None
    length_penalty: _Number = None
    no_repeat_ngram_size: _Count = None
    encoder_no_repeat_ngram_size: _Count = None
    repetition_penalty: _Number = None
    do_sample: bool | None = None
    temperature: _Number = None
    top_k: _Count = None
    top_p: _Number = None
    min_p: _Number = None
    stop_strings: str | list[str] | None = None


class _SettingsTypes(_GenerationTypes):
    """The types of the options in `Settings` that are checked; other options are kept unchecked."""

    id2label: dict[Annotated[str, Field(pattern=r"^[0-9]+$")], str] | None = None
    task_specific_params: dict[str, dict[str, Any]] | None = None
    finetuning_task: str | None = None
    trained_length: int | None = None
    trained_special_tokens: str | None = None
    max_position_embeddings: int | None = None
    model_max_length: int | float | None = None
    added_tokens_decoder: dict[str, dict[str, Any]] | None = None


NOT_APPLIED = {
    "typical_p": 1.0,
    "num_beam_groups": 1,
    "diversity_penalty": 0.0,
    "encoder_repetition_penalty": 1.0,
    "exponential_decay_length_penalty": None,
}
"""Generation options that are saved but not applied -> the value that has no effect."""
GENERATION_KEYS = frozenset([*_GenerationTypes.model_fields, *NOT_APPLIED])
# Options of `config.json` for label names, tasks, and the row length and special tokens used in
# training with Trivium.
_MODEL_KEYS = """
finetuning_task id2label label2id model_type problem_type sbert_ce_default_activation_function
sentence_transformers task_specific_params trained_length trained_special_tokens
"""
# Options of `tokenizer_config.json` with the same meaning in every class for `tokenizer.json`.
_TOKENIZER_KEYS = """
additional_special_tokens chat_template clean_up_tokenization_spaces extra_special_tokens
model_max_length padding_side truncation_side
"""
# Other options that `transformers` writes for every model and that do not change its logits.
_WITHOUT_EFFECT = """
_attn_implementation _attn_implementation_autoset _commit_hash _name_or_path _num_labels
architectures attn_implementation auto_map chunk_size_feed_forward cls_token_id dtype eos_token_ids
gradient_checkpointing initializer_factor initializer_range is_encoder_decoder model_type num_labels
num_return_sequences output_attentions output_hidden_states output_past output_scores prefix
prefix_token_id pretraining_tp pruned_heads remove_invalid_values return_dict
return_dict_in_generate sep_token_id tf_legacy_loss tie_encoder_decoder tokenizer_class torch_dtype
torchscript transformers.js_config transformers_version use_bfloat16 use_cache
"""
TOKENIZER_KEYS = frozenset(_TOKENIZER_KEYS.split())
MODEL_KEYS = frozenset(
    [
        *_MODEL_KEYS.split(),
        "max_position_embeddings",  # the context of a model with rotary positions
        *(name for name in GENERATION_KEYS if name.endswith("_token_id")),
    ]
)
# Aliases of options that classes of `transformers` read and Trivium does not.
_SIZES = "hidden_size num_attention_heads num_hidden_layers"
_ALIASES = {
    **dict.fromkeys(
        ("bart", "bigbird_pegasus", "m2m_100", "mbart", "pegasus"),
        "hidden_size num_attention_heads",
    ),
    "deepseek_v2": "num_experts",
    "deepseek_v3": "num_local_experts",
    "distilbert": _SIZES,
    "falcon": "n_embed",
    "gpt_neo": "num_attention_heads num_hidden_layers",
    "gpt_oss": "num_experts",
    "gptj": f"{_SIZES} max_position_embeddings",
    "gpt2": f"{_SIZES} max_position_embeddings",
    "marian": "hidden_size num_attention_heads",
    "mixtral": "num_experts",
    "openai-gpt": f"{_SIZES} max_position_embeddings",
    "rwkv": "max_position_embeddings",
    **dict.fromkeys(("mt5", "t5", "umt5"), f"{_SIZES} head_dim"),
    "xlnet": f"{_SIZES} n_token",
}
_IGNORED_KEYS = GENERATION_KEYS | {*_MODEL_KEYS.split(), *_WITHOUT_EFFECT.split()}


FULL, SLIDING = "full_attention", "sliding_attention"
"""The values of "layer_types": full attention and sliding-window attention."""


def decode_floats(value: Any) -> Any:
    """Return a value of a `config.json` in which infinity and NaN are numbers.

    `transformers` 5 writes them as {"__float__": "Infinity"}, because JSON has no such numbers.
    """
    if isinstance(value, list):
        return [decode_floats(each) for each in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {"__float__"} and value["__float__"] in ("Infinity", "-Infinity", "NaN"):
        return float(value["__float__"])
    return {name: decode_floats(each) for name, each in value.items()}


class ConfigReader:
    """Reads options from a `config.json` and records which were read. Null counts as missing.

    `weights` are the names of the tensors in the weight files, which some options depend on.
    `file_keys` contains the names of all options in the file, including those that are null.

    >>> config = ConfigReader({"model_type": "t5", "d_model": 256, "hidden_size": 384})
    >>> config.require("d_model")
    256
    >>> config.finish()
    Traceback (most recent call last):
    trivium.errors.CheckpointError: config.json: "hidden_size" is 384, which is not...
    """

    def __init__(self, options: Mapping[str, Any], weights: Collection[str] = ()) -> None:
        self.weights = weights
        self.file_keys = options.keys()
        self._options = {n: decode_floats(v) for n, v in options.items() if v is not None}
        self._known_keys: set[str] = set()

    @property
    def num_labels(self) -> int | None:
        """The value of `num_labels`, or else the number of `id2label` entries; else None."""
        count = self._options.get("num_labels") or len(self._options.get("id2label") or {})
        return int(count) or None

    def num_layers(self, default: int | None = None) -> int:
        """Return the number of layers. Raises CheckpointError if it is missing or above 1000."""
        count = self.require("num_hidden_layers", default)
        if count > 1000:  # a family that lists its layers does so before the spec is made
            raise self.unsupported("num_hidden_layers", expected="at most 1000")
        return count

    def layer_types(
        self, slides: Callable[[int], bool], num_layers: int | None = None
    ) -> list[str]:
        """Return `FULL` or `SLIDING` for each layer.

        `slides(i)` says whether layer i (from 0) uses sliding-window attention. The function is
        used only if the file has no "layer_types". `num_layers` is the default number of layers.
        """
        count = self.num_layers(num_layers)
        kinds = self.require("layer_types", [SLIDING if slides(i) else FULL for i in range(count)])
        if len(kinds) != count or not {*kinds} <= {FULL, SLIDING}:
            expected = f'"{FULL}" or "{SLIDING}" for each layer'
            raise self.unsupported("layer_types", expected=expected)
        return kinds

    def get(self, name: str, default: Any = None) -> Any:
        """Return an option's value, or the default if it is missing. Records the option as read."""
        self._known_keys.add(name)
        return self._options.get(name, default)

    def with_option(self, name: str, value: Any) -> ConfigReader:
        """Return a copy in which an option has another value. Both record what is read."""
        other = copy.copy(self)
        other._options = {**self._options, name: value}
        return other

    def require(self, name: str, default: Any = None) -> Any:
        """Return an option's value, or the default. Raises CheckpointError if there is neither."""
        value = self.get(name, default)
        if value is None:
            raise CheckpointError(
                f'config.json: "{name}" is missing, which {self._model_type} needs.'
            )
        return value

    def translate(self, name: str, values: Mapping[Any, Any], default: Any = None) -> Any:
        """Return `values[value]` for the value of an option.

        Raises CheckpointError if the value is not a key of `values`.
        """
        value = self.require(name, default)
        if not isinstance(value, str | bool | int) or value not in values:
            raise self.unsupported(name, *values)
        return values[value]

    def expect(self, name: str, *allowed: Any) -> None:
        """Raise CheckpointError if an option is set to a value that is not in `allowed`."""
        if self.get(name, allowed[0]) not in allowed:
            raise self.unsupported(name, *allowed)

    def ignore(self, *names: str) -> None:
        """Mark options that do not affect the logits as read, so that `finish` accepts them."""
        self._known_keys.update(names)

    def unsupported(self, name: str, *allowed: Any, expected: str = "") -> CheckpointError:
        """Return the error for an unsupported value; it lists the allowed values, or `expected`."""
        expected = expected or ", ".join(map(repr, allowed))
        known = f"; supported: {expected}" if expected else ""
        return CheckpointError(
            f'config.json: "{name}" is {self._options.get(name)!r}, which is not supported for '
            f"{self._model_type}{known}."
        )

    def finish(self, *, allow_unknown: bool = False) -> None:
        """Warn about options that were not read.

        Raises CheckpointError for an unread option that `transformers` reads for this model type,
        unless `allow_unknown` is set.
        """
        unread = sorted(self._options.keys() - self._known_keys - _IGNORED_KEYS)
        aliases = _ALIASES.get(self._model_type, "").split()
        for name in unread:
            if name in aliases and not allow_unknown:
                raise CheckpointError(
                    f"{self.unsupported(name)} If it changes nothing, leave it out or give "
                    "allow_unknown_keys (`trivium import --allow-unknown-keys`)."
                )
        if unread:
            shown = ", ".join(f"{name} = {self._options[name]!r}" for name in unread)
            warnings.warn(f"config.json: not read, as if without effect: {shown}.", stacklevel=2)

    @property
    def _model_type(self) -> str:
        """The `model_type` of the config, or "this model" if it is missing; for error messages."""
        return str(self._options.get("model_type", "this model"))


def read_json_object(file: Path) -> dict[str, Any]:
    """Return the JSON object in a file. Raises CheckpointError if there is no valid object."""
    try:
        value = read_json(file)
    except DataError as error:
        raise CheckpointError(str(error)) from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{file}: JSON, but not an object with names and values.")
    return value


def read_object_if_exists(file: Path) -> dict[str, Any]:
    """Return the JSON object in a file, or {} if the file does not exist."""
    return read_json_object(file) if file.is_file() else {}


def check_types(options: Mapping[str, Any], where: Path) -> None:
    """Raise CheckpointError if the value of an option has the wrong type or range."""
    try:
        _SettingsTypes.model_validate(options)
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0])
        value = shorten(repr(options.get(name)))
        raise CheckpointError(
            f'{where}: the option "{name}" is {value}; expected {expected(first)}.'
        ) from None
