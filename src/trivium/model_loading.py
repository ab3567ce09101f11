"""Load a `LanguageModel` from a run, a checkpoint, a model folder or Hugging Face."""

from __future__ import annotations

import os
import tomllib
import warnings
from collections import Counter
from pathlib import Path
from typing import Literal, get_args

import torch

from trivium.adapt.quantize import Quantization, quantize_base
from trivium.adapt.quantize import pack as pack_weights
from trivium.bundled_models import is_bundled
from trivium.errors import CheckpointError, TriviumError, did_you_mean
from trivium.interop.hf_folder import is_hf_folder, read_folder
from trivium.interop.peft_reader import is_adapter_folder, read_adapter_config
from trivium.interop.settings import Settings
from trivium.interop.tokenizer_files import read_tokenizer
from trivium.language_model import LanguageModel
from trivium.model_folder import (
    CHECKPOINTS,
    RECIPE,
    find_checkpoint,
    find_weights,
    is_unfinished,
    read_model,
    read_source_tokenizer,
    read_spec,
)
from trivium.models import LanguageModule, build
from trivium.remote_model import find_local_path, find_model

Precision = Literal["float32", "bfloat16", "float16"]


def load(
    path: str | os.PathLike[str],
    *,
    checkpoint: int | None = None,
    device: str | torch.device = "auto",
    dtype: torch.dtype | Precision | None = None,
    lowercase: bool | None = None,
    quantize: Quantization | None = None,
    pack: bool = False,
    compile: bool = False,
    verify: bool = True,
    allow_unknown_keys: bool = False,
) -> LanguageModel:
    """Load a model from a run, a checkpoint, a model folder, or the Hugging Face hub.

    If a run has not finished, its last good checkpoint is loaded, with a warning. If the folder
    contains an adapter in PEFT's format, the base model named in it is loaded, too. A path that is
    not a folder is looked up among the models that come with Trivium (`stories`), and then on the
    Hugging Face hub, or in the hub's local cache.

    Args:
        path: a folder of Trivium or `transformers`, its URL in object storage, the name of a
            bundled model, or a hub name such as "org/name", optionally with a revision:
            "org/name@v1.0".
        checkpoint: the step of the checkpoint to load (only for a run).
        device: the device of the weights. "auto" is a GPU if there is one, else the CPU. With
            "meta", no weights are loaded: the model only reports its capabilities, which are read
            from spec.json or from the headers of the weight files.
        dtype: the dtype of the weights, or its name. The default is the stored dtype. If a Hugging
            Face folder contains several, the default is the dtype of most parameters. The default
            of bundled models is float32.
        lowercase: whether a tokenizer that is read from a `vocab.txt` lowercases text. It is used
            only if the folder does not contain this setting.
        quantize: "int8" quantises the weights to 8 bits, for less memory and, on a CPU, faster
            generation. "nf4" quantises the weights of the layers to 4 bits with bitsandbytes. Such
            a model cannot be trained or saved.
        pack: store the weights in the memory layout that a CPU reads fastest. Such a model cannot
            be trained or saved.
        compile: compile the decode step of `generate` with `torch.compile`. This needs a C++
            compiler and takes a minute at first use, and again for requests of more than 2,048
            tokens. It cannot be combined with `quantize` or `pack`.
        verify: compare the files of a Trivium folder with their checksums. This reads each file a
            second time. A match is cached until the file changes.
        allow_unknown_keys: warn about options in a Hugging Face `config.json` that `transformers`
            reads for this family and Trivium does not, instead of raising an error. Options that
            `transformers` does not have never cause more than a warning.

    Raises:
        CheckpointError: there is no model, or the model is damaged or not supported.
        SpecError: the model cannot be quantised.
        TriviumError: `dtype` or `quantize` is an unknown name, options exclude each other, or the
            device cannot be used.
    """
    if compile and (pack or quantize):
        raise TriviumError("compile works on plain weights: leave pack and quantize out.")
    for option, value, known in (
        ("quantize", quantize, get_args(Quantization)),
        ("dtype", dtype, get_args(Precision)),
    ):
        if isinstance(value, str) and value not in known:
            raise TriviumError(
                f'{option} is "{value}", but must be one of {", ".join(known)}.'
                f"{did_you_mean(value, known)}"
            )
    target = find_device(device)
    if checkpoint is None:
        folder = find_model(path)
    else:
        folder = find_checkpoint(find_local_path(path, checkpoint), checkpoint)
    if is_adapter_folder(folder):
        options = {"dtype": dtype, "lowercase": lowercase, "verify": verify}
        options |= {"allow_unknown_keys": allow_unknown_keys}
        on_host = quantize == "nf4" and target.type != "meta"  # until it is quantised
        try:
            base = load(find_base(folder), device="cpu" if on_host else target, **options)
        except CheckpointError as error:
            raise CheckpointError(f"{folder}: the base of this adapter: {error}") from None
        lm = base.merge_adapter().with_adapter(folder, name=Path(path).name)
        _move_and_pack(lm.module, target, None, quantize, pack=pack)
        lm.compile = compile
        return lm
    on_meta = target.type == "meta"
    if is_hf_folder(folder):
        hf = read_folder(
            folder, lowercase=lowercase, on_meta=on_meta, allow_unknown_keys=allow_unknown_keys
        )
        source = hf.source_tokenizer
        lm = LanguageModel(
            hf.module.spec, hf.module, hf.tokenizer, hf.settings, source_tokenizer=source
        )
        dtype = dtype or _find_main_dtype(lm.module)
    else:
        if on_meta:
            folder = find_weights(folder, verify=False)
            lm = make_model(folder, build(read_spec(folder), device="meta"))
        else:
            folder = find_newest_weights(folder, verify=verify)
            lm = make_model(folder, read_model(folder))
        if is_bundled(folder):
            dtype = dtype or "float32"  # fast on every CPU
    precision = getattr(torch, dtype) if isinstance(dtype, str) else dtype
    _move_and_pack(lm.module, target, precision, quantize, pack=pack)
    lm.compile = compile
    return lm


def _move_and_pack(
    module: LanguageModule,
    device: torch.device,
    dtype: torch.dtype | None,
    quantize: Quantization | None,
    *,
    pack: bool,
) -> None:
    """Move a module to a device and dtype, and pack or quantise its weights, in place.

    Weights in 4 bits are quantised one matrix at a time, so that a GPU never holds all of them in
    full precision.
    """
    if quantize == "nf4" and device.type != "meta":
        if dtype is not None:
            module.to(dtype=dtype)
        quantize_base(module, "nf4", device)
        module.to(device)
        return
    module.to(device=device, dtype=dtype)
    if quantize is not None or pack:
        pack_weights(module, quantize=quantize)


def find_base(folder: Path) -> str:
    """Return the path or hub name of the base model of the adapter in a folder.

    Raises:
        CheckpointError: the adapter does not name its base.
    """
    config = read_adapter_config(folder)
    base = config.base_model_name_or_path
    if not base or Path(base).resolve() == folder.resolve():
        raise CheckpointError(
            "adapter_config.json does not name it. Load the base, and add the adapter: "
            'trivium.load("BASE").with_adapter("FOLDER").'
        )
    return base if Path(base).is_dir() or not config.revision else f"{base}@{config.revision}"


def _find_main_dtype(module: torch.nn.Module) -> torch.dtype | None:
    """Return the dtype of the largest number of parameters, or None if there are no parameters."""
    counts = Counter[torch.dtype]()
    for weight in module.parameters():
        counts[weight.dtype] += weight.numel()
    return counts.most_common(1)[0][0] if counts else None


def find_newest_weights(run: Path, *, verify: bool) -> Path:
    """Return the folder of the weights of a run, a checkpoint or a model folder of Trivium.

    Warns if it is a checkpoint of an unfinished run. Raises CheckpointError as `find_weights` does.
    """
    folder = find_weights(run, verify=verify)
    if folder.parent == run / CHECKPOINTS and is_unfinished(run):
        _warn_unfinished(run, folder)
    return folder


def make_model(folder: Path, module: LanguageModule) -> LanguageModel:
    """Return a model with the settings and tokenizers in a folder that Trivium wrote."""
    settings = Settings.read(folder)
    tokenizer, source = read_tokenizer(folder, settings.tokenizer), read_source_tokenizer(folder)
    return LanguageModel(module.spec, module, tokenizer, settings, source_tokenizer=source)


def _warn_unfinished(run: Path, checkpoint: Path) -> None:
    """Warn that a run is unfinished and that the checkpoint of a given step is loaded instead."""
    step = int(checkpoint.name.removeprefix("step-"))
    try:
        recipe = tomllib.loads((run / RECIPE).read_text(encoding="utf-8"))
        of_steps = f" of {recipe['train']['steps']:,}"
    except (OSError, ValueError, LookupError, TypeError):  # no number of steps, or no recipe
        of_steps = ""
    warnings.warn(
        f"{run} is a run that has not finished: this is its checkpoint of step {step:,}{of_steps}.",
        stacklevel=2,
    )


def find_device(device: str | torch.device) -> torch.device:
    """Return the device with the name `device`. "auto" is a GPU if there is one, else the CPU.

    Raises:
        TriviumError: the device does not exist or cannot be used.
    """
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.empty(0, device=device).device
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        if reason.startswith("Expected one of"):
            reason = "PyTorch has no such device"
        raise TriviumError(
            f'device "{device}" cannot be used: {reason}. Give auto, cpu, cuda, cuda:1, ... or mps.'
        ) from None
