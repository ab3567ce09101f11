"""Write a model as ONNX files, in the layout that Optimum and transformers.js load.

    config.json  tokenizer.json  ...  onnx/model.onnx

An encoder-decoder has two graphs, `encoder_model` and `decoder_model_merged`. The suffix of a file
is that of transformers.js for its data type.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
import re
import warnings
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any, Literal, get_args

import torch

from trivium.errors import SpecError, require_extra
from trivium.interop.onnx_graphs import (
    Graph,
    cross_decoder_graph,
    decoder_graph,
    encoder_graph,
    text_graph,
)
from trivium.models import Transformer
from trivium.models.heads.text import Pooling
from trivium.models.transformer import TransformerSpec

ONNX = "onnx"
"""The folder of the ONNX files."""
ONNXWeightType = Literal["f32", "f16", "int8"]
ONNX_WEIGHT_TYPES: tuple[ONNXWeightType, ...] = get_args(ONNXWeightType)
_SUFFIXES = {"f32": "", "f16": "_fp16", "int8": "_quantized"}
_OPSET = 20  # the first with the operator Gelu
_MAX_BYTES = 2**31 - 2**26  # a protobuf file has less than 2 GiB; this leaves 64 MiB for the graph

_MIXERS = {"attention", "global-attention"}  # compared with `transformers` in onnxruntime


def export_problem(spec: TransformerSpec) -> str | None:
    """Return the part of a model that cannot be exported as ONNX, or None."""
    for layer in (each for stack in spec.stacks for each in stack.every_layer):
        if layer.mixer.kind not in _MIXERS:
            return f'the mixer "{layer.mixer.kind}"'
        if not layer.has_fixed_shapes:
            return "a mixture of experts"
    if spec.global_tokens is not None:
        return "global attention for the task of its head"
    if spec.fills_blanks:
        return "two-dimensional positions"
    if spec.recompute_lengths:
        return "RoPE whose frequencies change with the length of the text (LongRoPE)"
    if spec.family == "encoder-decoder" and not _generates(spec):
        return "an encoder-decoder with another head than lm"
    return None


def write_onnx(
    folder: Path,
    module: Transformer,
    weight_type: ONNXWeightType = "f32",
    *,
    pooling: Pooling | None = None,
    normalize: bool = True,
) -> dict[str, Any]:
    """Write the graphs of a model to `folder/onnx`.

    Args:
        folder: the folder with `config.json`.
        module: the model.
        weight_type: the data type of the weights: "f32", "f16" or "int8" (8 bits, with activations
            quantised at run time).
        pooling: how hidden states become an embedding; None: only a model without logits has
            embeddings, the mean of its hidden states.
        normalize: whether embeddings are scaled to length 1.

    Returns:
        The options that transformers.js needs in `config.json`.

    Raises:
        SpecError: the model has a part that cannot be exported, or an unknown weight type.
        MissingExtraError: the extra `onnx` is not installed.
    """
    if weight_type not in ONNX_WEIGHT_TYPES:
        raise SpecError(
            f'weight_type="{weight_type}" is not known; it is one of: '
            f"{', '.join(ONNX_WEIGHT_TYPES)}."
        )
    if problem := export_problem(module.spec):
        raise SpecError(f"ONNX: this model has {problem}, which cannot be exported.")
    with require_extra("the export to ONNX", "onnx"):
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401

    copied = deepcopy(module).eval().requires_grad_(False)
    copied = copied.half() if weight_type == "f16" else copied.float()
    if not _generates(module.spec):
        graphs = {"model": text_graph(copied, pooling, normalize=normalize)}
    elif module.spec.family == "decoder-only":
        graphs = {"model": decoder_graph(copied)}
    else:
        graphs = {
            "encoder_model": encoder_graph(copied),
            "decoder_model_merged": cross_decoder_graph(copied),
        }
    (folder / ONNX).mkdir()
    options: dict[str, Any] = {}
    for name, graph in graphs.items():
        file = folder / ONNX / f"{name}{_SUFFIXES[weight_type]}.onnx"
        if weight_type == "int8":
            whole = file.with_name(f"{name}.onnx")
            _export_graph(graph, whole)
            _quantize(whole, file)
            for each in (whole, _data_file(whole)):
                each.unlink(missing_ok=True)
        else:
            _export_graph(graph, file)
        if _data_file(file).exists():
            options["use_external_data_format"] = True
    return {"transformers.js_config": options} if options else {}


def _generates(spec: TransformerSpec) -> bool:
    """Return whether a model has a decoder with a language-model head."""
    return spec.decoder is not None and any(head.kind == "lm" for head in spec.heads)


def _data_file(file: Path) -> Path:
    """Return the file of the weights of a model that is too large for one file."""
    return file.with_name(f"{file.name}_data")


def _export_graph(graph: Graph, file: Path) -> None:
    """Trace a graph with its example inputs, and write it to an ONNX file."""
    arguments = tuple(graph.inputs.values())
    with _quiet(), torch.enable_grad():  # without gradients, large masks are computed in parts
        traced = torch.export.export(
            graph.module, arguments, dynamic_shapes=_dynamic_shapes(graph), strict=False
        )
        program = torch.onnx.export(
            traced,
            arguments,
            dynamo=True,
            opset_version=_OPSET,
            input_names=[*graph.inputs],
            output_names=[*graph.outputs],
            verbose=False,
        )
    assert program is not None
    _name_axes(program.model, graph)
    _save(program.model, file)


def _dynamic_shapes(graph: Graph) -> tuple[Any, ...]:
    """Return the axes of variable length, in the structure of the arguments of `forward`."""
    shapes = [dict.fromkeys(graph.axes[name], torch.export.Dim.DYNAMIC) for name in graph.inputs]
    kinds = [each.kind for each in inspect.signature(graph.module.forward).parameters.values()]
    if inspect.Parameter.VAR_POSITIONAL not in kinds:
        return tuple(shapes)
    fixed = len(kinds) - 1
    return (*shapes[:fixed], tuple(shapes[fixed:]))


def _name_axes(model: Any, graph: Graph) -> None:
    """Replace the symbols of axes, such as s15, by their names in `graph.axes`."""
    import onnx_ir

    names: dict[str, str] = {}
    for value in model.graph.inputs:
        for axis, name in graph.axes[value.name].items():
            names.setdefault(str(value.shape[axis]), name)

    def rename(symbol: re.Match[str]) -> str:
        """Return the name of a symbol; one without a name is kept."""
        return names.get(symbol[0], symbol[0])

    computed = (value for node in model.graph for value in node.outputs)
    for value in (*model.graph.inputs, *computed):
        for axis, size in enumerate(value.shape or ()):
            if not isinstance(size, int):
                value.shape[axis] = onnx_ir.SymbolicDim(re.sub(r"\bs\d+\b", rename, str(size)))


def _save(model: Any, file: Path) -> None:
    """Write a model to a file, and its weights to a second file if they are too large for one."""
    import onnx_ir

    weights = model.graph.initializers.values()
    size = sum(each.const_value.nbytes for each in weights if each.const_value is not None)
    data = _data_file(file).name if size > _MAX_BYTES else None
    onnx_ir.save(model, file, external_data=data)


def _quantize(file: Path, out: Path) -> None:
    """Quantise the matrices of a graph to 8 bits; activations are quantised at run time.

    Weights are unsigned, because products of unsigned activations with signed weights saturate on
    processors with AVX2.
    """
    with require_extra("the export to ONNX with int8 weights", "onnx"):
        from onnxruntime.quantization import QuantType, quantize_dynamic

    with _quiet():
        quantize_dynamic(
            file,
            out,
            weight_type=QuantType.QUInt8,
            per_channel=True,
            extra_options={"MatMulConstBOnly": True},
        )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence the warnings and log lines of the exporter, which are about its own code."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
