"""Read and write Hugging Face folders; reading keeps at most one copy of the weights."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from trivium.errors import CheckpointError, SpecError
from trivium.files import write_file, write_json
from trivium.interop.convert import (
    build_with_weights,
    exported_spec,
    family_of,
    nearest_config,
    read_hugging_face,
    to_hugging_face,
)
from trivium.interop.family import Family
from trivium.interop.hf_config import TOKENIZER_KEYS, read_json_object
from trivium.interop.label_scale import fold_label_scale
from trivium.interop.marian_tokenizer import (
    is_marian_folder,
    read_marian_tokenizers,
    write_marian_tokenizers,
)
from trivium.interop.sentence_transformers import (
    read_dense,
    read_embedding_options,
    read_score_activation,
    write_modules,
)
from trivium.interop.settings import (
    CHAT_TEMPLATE,
    GENERATION,
    MAX_TARGET,
    TOKENIZER_OPTIONS,
    TOOL_TEMPLATE,
    Settings,
)
from trivium.interop.tensor_files import MAX_SHARD_BYTES, read_tensors, write_tensors
from trivium.interop.tokenizer_files import add_document_template, read_tokenizer
from trivium.lazy_tensors import LazyTensors, combine
from trivium.models import LanguageModule, Transformer, build
from trivium.models.base_model import Spec
from trivium.models.heads.text import VectorHead
from trivium.models.transformer import TransformerSpec
from trivium.text import Tokenizer

CONFIG, SPEC = "config.json", "spec.json"

# Ids are always written: their defaults in `transformers` belong to the published vocabularies.
_IDS = {"bos_token_id": "bos_id", "eos_token_id": "eos_id", "pad_token_id": "pad_id"}
_GENERATION_IDS = {*_IDS, "decoder_start_token_id"}
_ENCODER_IDS = {"cls_token_id": "cls_id", "sep_token_id": "sep_id"}


@dataclass(frozen=True)
class HFModel:
    """The model, tokenizers and settings read from a Hugging Face folder."""

    module: Transformer
    tokenizer: Tokenizer | None
    settings: Settings
    source_tokenizer: Tokenizer | None = None
    """The tokenizer of the encoder's input, if it differs from `tokenizer`."""


def is_hf_folder(folder: Path) -> bool:
    """Return whether a folder has Hugging Face's `config.json` and not Trivium's `spec.json`."""
    return (folder / CONFIG).is_file() and not (folder / SPEC).is_file()


def read_folder(
    folder: Path,
    *,
    lowercase: bool | None = None,
    on_meta: bool = False,
    allow_unknown_keys: bool = False,
) -> HFModel:
    """Return the model in a folder with `config.json`; its weights are memory-mapped if possible.

    Args:
        folder: a folder with `config.json`, weights and, optionally, a tokenizer.
        lowercase: whether the text is lower-cased for a `vocab.txt`, if no file says so.
        on_meta: create the weights on the meta device, with names and shapes but no values.
        allow_unknown_keys: as in `trivium.load`.

    Raises:
        CheckpointError: a file that is missing or damaged, a model that is not supported, weights
            that do not fit the config, or a pickle that contains code.
        TokenizerError: a tokenizer that cannot be read.
    """
    stored = _open_folder(folder, on_meta=on_meta, allow_unknown_keys=allow_unknown_keys)
    module, settings = build_with_weights(stored.spec, stored.weights), stored.settings
    kind, encodes = stored.family.tokenizer_class, module.spec.family != "decoder-only"
    source_tokenizer = None
    if is_marian_folder(folder):
        source_tokenizer, tokenizer = read_marian_tokenizers(folder)
    else:
        tokenizer = read_tokenizer(
            folder,
            settings.tokenizer,
            tokenizer_class=kind,
            lowercase=lowercase,
            for_encoder=encodes,
        )
    pieces = sorted(file.name for file in folder.glob("*.spm"))
    if tokenizer is None and pieces:
        warnings.warn(
            f"{folder}: {', '.join(pieces)} are not read, since Marian's tokenizers also need "
            "source.spm, target.spm and vocab.json; the model is loaded without a tokenizer.",
            stacklevel=2,
        )
    return HFModel(module, tokenizer, settings, source_tokenizer)


def read_folder_weights(folder: Path) -> LazyTensors:
    """Return the `state_dict` of the model in a folder, each tensor read when it is looked up.

    A tensor may be a view of a memory-mapped file, and need not be contiguous.

    Raises:
        CheckpointError: as `read_folder`. Damaged values are found when a tensor is looked up.
    """
    return _open_folder(folder, on_meta=False, allow_unknown_keys=True).weights


@dataclass(frozen=True)
class _OpenFolder:
    """The model in a Hugging Face folder, before its weights are read."""

    family: Family
    spec: TransformerSpec
    settings: Settings
    weights: LazyTensors


def _open_folder(folder: Path, *, on_meta: bool, allow_unknown_keys: bool) -> _OpenFolder:
    """Read the config and the settings in a folder, and map its weight files. See `read_folder`."""
    options = read_json_object(folder / CONFIG)
    with _prefix_errors(folder):
        if options.get("model_type") or options.get("architectures"):
            family_of(options)  # an error before the weights are read
    tensors = read_tensors(folder, on_meta=on_meta)
    with _prefix_errors(folder):
        family = family_of(options, tensors.keys())
        spec, weights = read_hugging_face(options, tensors, allow_unknown_keys=allow_unknown_keys)
    settings = Settings.read_hf(folder, options, generates=_is_generative(spec))
    if activation := read_score_activation(folder):
        scores = {"sentence_transformers": {"activation_fn": activation}}
        settings = replace(settings, config={**settings.config, **scores})
    vectors = read_embedding_options(folder)
    if vectors and settings.task is None:
        settings = settings.with_task("contrastive", **vectors, as_documents=False)
    if settings.pooling is not None:
        layers, dense = read_dense(folder, spec.d_model)
        if layers:
            spec = spec.with_heads((*spec.heads, VectorHead(layers=tuple(layers))))
            weights = combine(weights, dense)

    def read(name: str) -> Tensor:
        """Return a weight. An error names the folder."""
        with _prefix_errors(folder):
            return weights[name]

    named = LazyTensors({name: partial(read, name) for name in weights})
    return _OpenFolder(family, spec, settings, named)


def write_folder(
    folder: Path,
    module: LanguageModule,
    tokenizer: Tokenizer | None,
    settings: Settings,
    *,
    source_tokenizer: Tokenizer | None = None,
    max_shard_bytes: int = MAX_SHARD_BYTES,
    with_weights: bool = True,
) -> Transformer:
    """Write a model to an empty folder, in the files that `transformers` loads.

    A model with two tokenizers is written with those of Marian. With `with_weights` False, all
    files except the weights are written.

    Returns:
        The model that was written: without heads that no class has, and with the scale of
        regression labels in the weights.

    Raises:
        SpecError: no Hugging Face family can express this model or its tokenizers.
    """
    if not isinstance(module, Transformer):
        raise SpecError(
            f"Hugging Face has no {type(module).__name__}: only Transformers can be exported."
        )
    whole, module = module, _drop_unknown_heads(module)
    module, settings = _fold_label_scale(module, settings)
    options, tensors = to_hugging_face(module, settings.config.get("model_type"))
    if with_weights:
        write_tensors(folder, tensors, max_shard_bytes=max_shard_bytes)
    config = _make_config(options, tensors, tokenizer, settings)
    context = settings.config.get("max_position_embeddings")
    if context is not None and module.spec.max_length is None:  # no position embedding sets it
        config["max_position_embeddings"] = context
    if _is_generative(module.spec):
        generation = {**_special_token_ids(tokenizer, _IDS), **settings.generation}
        # The loss of `transformers` reads these ids in config.json, `generate` in GENERATION.
        config |= {name: generation[name] for name in _GENERATION_IDS & generation.keys()}
        limits = {"max_length", "max_new_tokens"}
        if module.spec.family == "encoder-decoder" and not limits & generation.keys():
            generation["max_length"] = 1 + MAX_TARGET  # including the decoder start token
        write_json(folder / GENERATION, generation)
    write_json(folder / CONFIG, config)
    if tokenizer is not None and source_tokenizer is not None:
        limit = module.spec.max_length
        kept = {k: v for k, v in settings.tokenizer.items() if k in TOKENIZER_KEYS}
        options = kept if limit is None else {"model_max_length": limit, **kept}
        write_marian_tokenizers(folder, source_tokenizer, tokenizer, options)
    elif tokenizer is not None:
        _write_tokenizer(folder, tokenizer, settings, module.spec)
    if settings.pooling is not None:
        vectors = settings.task_options("contrastive")
        lengths = vectors.get("max_seq_length"), settings.config.get("trained_length")
        known = [each for each in (*lengths, module.spec.max_length) if each is not None]
        write_modules(folder, vectors, whole, max_length=min(known, default=None))
    return module


@contextmanager
def _prefix_errors(folder: Path) -> Iterator[None]:
    """Prefix the messages of CheckpointErrors with the path of the folder."""
    try:
        yield
    except CheckpointError as error:
        raise CheckpointError(f"{folder}: {error}") from None


def _is_generative(spec: TransformerSpec) -> bool:
    """Return whether a model generates text, that is, has a decoder and an LM head."""
    return spec.decoder is not None and any(head.kind == "lm" for head in spec.heads)


def _make_config(
    options: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    tokenizer: Tokenizer | None,
    settings: Settings,
) -> dict[str, Any]:
    """Return the content of `config.json`.

    Ids in the settings take precedence over the tokenizer's ids, and label names in the settings
    over those in `options` if both have the same number of labels.
    """
    kept = dict(settings.config)
    names = {name: kept.pop(name) for name in ("id2label", "label2id") if name in kept}
    precision = str(next(iter(tensors.values())).dtype).removeprefix("torch.")
    ids = _special_token_ids(tokenizer, _IDS)
    if tokenizer is not None and "cls" in tokenizer.roles:
        ids |= _special_token_ids(tokenizer, _ENCODER_IDS)
    config = {**ids, **kept, **options, "torch_dtype": precision}
    if len(names.get("id2label", ())) == len(options.get("id2label", ())):
        config |= names
    return config


def _special_token_ids(
    tokenizer: Tokenizer | None, ids: Mapping[str, str]
) -> dict[str, int | None]:
    """Return option of `config.json` -> id of the special token, None if the tokenizer has none.

    `ids` maps each option (such as `bos_token_id`) to an attribute of `Tokenizer`.
    """
    return {option: getattr(tokenizer, name, None) for option, name in ids.items()}


def _write_tokenizer(
    folder: Path, tokenizer: Tokenizer, settings: Settings, spec: TransformerSpec
) -> None:
    """Write the files of the tokenizer, `tokenizer_config.json` and the chat template."""
    if spec.family != "decoder-only" or settings.uses_document_tokens:
        tokenizer = add_document_template(tokenizer)
    tokenizer.save(folder)
    type_ids = ["token_type_ids"] if spec.num_token_types > 1 else []
    options = {
        **read_json_object(folder / TOKENIZER_OPTIONS),
        "model_input_names": ["input_ids", *type_ids, "attention_mask"],
        **({} if spec.max_length is None else {"model_max_length": spec.max_length}),
        **{k: v for k, v in settings.tokenizer.items() if k in TOKENIZER_KEYS},
    }
    write_json(folder / TOKENIZER_OPTIONS, options)
    if settings.chat_template is not None:
        write_file(folder / CHAT_TEMPLATE, settings.chat_template)
    if settings.tool_template is not None:
        (folder / TOOL_TEMPLATE).parent.mkdir(exist_ok=True)
        write_file(folder / TOOL_TEMPLATE, settings.tool_template)


def export_problem(spec: Spec) -> str | None:
    """Return the reason why a model cannot be exported to Hugging Face, or None if it can."""
    if not isinstance(spec, TransformerSpec):
        return "only Transformers can be exported"
    nearest = nearest_config(exported_spec(spec))
    for difference in nearest.differences:
        return f"{nearest.family.model_type}, the nearest family, does not have {difference}"
    return None


def _drop_unknown_heads(module: Transformer) -> Transformer:
    """Return the model without the heads that no Hugging Face class has.

    Warns if an LM or MLM head is among them.
    """
    spec = exported_spec(module.spec)
    if spec == module.spec:
        return module
    if len(spec.heads) + ("vector" in module.heads) == len(module.heads):
        return _rebuild(spec, module.state_dict())
    lost, left = "a mask decoder", "is the encoder, to be fine-tuned, and fills no masks"
    if spec.family == "decoder-only":
        lost = f"a {spec.heads[0].kind} and a head over the vocabulary"
        left = "predicts labels, no longer the next token"
    warnings.warn(f"no Hugging Face class has {lost}: the exported model {left}.", stacklevel=4)
    return _rebuild(spec, module.state_dict())


def _fold_label_scale(module: Transformer, settings: Settings) -> tuple[Transformer, Settings]:
    """Fold the mean and standard deviation of regression labels into the classifier head."""
    weights, folded = fold_label_scale(module.state_dict(), settings)
    return (module if folded is settings else _rebuild(module.spec, weights)), folded


def _rebuild(spec: TransformerSpec, weights: Mapping[str, Tensor]) -> Transformer:
    """Build the model of a spec and load its weights from `weights`; other entries are ignored."""
    module = build(spec, device="meta")
    module.load_state_dict({name: weights[name] for name in module.state_dict()}, assign=True)
    return module.eval()
