"""A `config.json` that is read strictly: an option nobody asked for is an option not supported."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from trivium.errors import CheckpointError

# What `transformers` writes for every model and what says nothing about the numbers that come out.
_NAMES = """
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
tokenizer_class top_k top_p torch_dtype torchscript transformers.js_config transformers_version
typical_p use_bfloat16 use_cache
"""
_WITHOUT_EFFECT = frozenset(_NAMES.split())


class Config:
    """The options of a `config.json`, each to be taken by name.

    >>> config = Config({"model_type": "bert", "hidden_size": 256, "colour": "blue"})
    >>> config.take("hidden_size")
    256
    >>> config.finish()
    Traceback (most recent call last):
    trivium.errors.CheckpointError: config.json: "colour" ('blue') is not supported for bert...
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = options
        self._taken: set[str] = set()

    @property
    def model_type(self) -> str:
        """The family's name."""
        return str(self._options.get("model_type", "this model"))

    @property
    def num_labels(self) -> int:
        """How many labels a classifying head has (theirs: 2 unless the config names them)."""
        names = self._options.get("id2label") or {}
        # Where old files hold both and they differ, theirs believes the number.
        return int(self._options.get("num_labels") or len(names) or 2)

    def has(self, name: str) -> bool:
        """Whether an option is there and is not null."""
        return self._options.get(name) is not None

    def take(self, name: str, default: Any = None) -> Any:
        """The value of an option; null and missing ones give the default.

        Raises CheckpointError where there is neither value nor default.
        """
        self._taken.add(name)
        value = self._options.get(name)
        value = default if value is None else value
        if value is None:
            raise CheckpointError(f'config.json: "{name}" is missing, which {self.model_type} has.')
        return value

    def optional(self, name: str) -> Any:
        """The value of an option, or None."""
        self._taken.add(name)
        return self._options.get(name)

    def only(self, name: str, *allowed: Any) -> None:
        """Refuse any value of an option but the allowed ones; missing and null are fine."""
        self._taken.add(name)
        value = self._options.get(name)
        if value is not None and value not in allowed:
            known = ", ".join(repr(item) for item in allowed)
            raise CheckpointError(
                f'config.json: "{name}" is {value!r}, which is not supported for '
                f"{self.model_type}; supported: {known}."
            )

    def choose(self, name: str, table: Mapping[str, Any], default: str | None = None) -> Any:
        """Translate the value of an option by a table."""
        value = self.take(name, default)
        if value not in table:
            known = ", ".join(map(repr, table))
            raise CheckpointError(
                f'config.json: "{name}" is {value!r}, which is not supported for '
                f"{self.model_type}; supported: {known}."
            )
        return table[value]

    def ignore(self, *names: str) -> None:
        """Name options that have no effect on what the model computes."""
        self._taken.update(names)

    def finish(self) -> None:
        """Refuse options that nothing has asked for."""
        left = self._left()
        if left:
            name = min(left)
            raise CheckpointError(
                f'config.json: "{name}" ({self._options[name]!r}) is not supported for '
                f"{self.model_type}."
            )

    def _left(self) -> Collection[str]:
        return {
            name
            for name, value in self._options.items()
            if value is not None and name not in self._taken and name not in _WITHOUT_EFFECT
        }


ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
    "tanh": "tanh",
}
"""Their names of activations -> ours."""

THEIR_ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_tanh": "gelu_new",
    "relu": "relu",
    "silu": "silu",
    "tanh": "tanh",
}
"""Our names of activations -> theirs."""


def labels(count: int) -> dict[str, dict[str, str] | dict[str, int]]:
    """The options by which theirs names (and counts) labels."""
    names = {str(i): f"LABEL_{i}" for i in range(count)}
    return {"id2label": names, "label2id": {name: int(i) for i, name in names.items()}}
