"""ONNX files compute what `transformers` computes, in onnxruntime, for all sizes and caches."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from hf_models import Case, case_id, hf_model
from hugging_face import ours_of
from torch import Tensor

from trivium import LanguageModel
from trivium.cli import main
from trivium.errors import SpecError
from trivium.interop import onnx_file
from trivium.interop.onnx_file import ONNX
from trivium.text import Tokenizer
from trivium.text.trainers.byte_bpe import ByteBPE

onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

SIZES = [(1, 1), (1, 2), (3, 11), (2, 13)]
"""Batches and lengths, other than those of the example that is traced."""


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return ByteBPE(vocab_size=300).train(["a text of several words"] * 3, progress=False)


class Session:
    """An ONNX file in onnxruntime."""

    def __init__(self, file: Path) -> None:
        self.session = onnxruntime.InferenceSession(file)
        self.inputs = {each.name: each for each in self.session.get_inputs()}
        self.outputs = [each.name for each in self.session.get_outputs()]

    def __call__(self, **inputs: Tensor) -> dict[str, Tensor]:
        arrays = {name: x.detach().numpy() for name, x in inputs.items()}
        outputs = self.session.run(None, arrays)
        return {name: torch.tensor(x) for name, x in zip(self.outputs, outputs, strict=True)}

    def empty_cache(self, rows: int) -> dict[str, Tensor]:
        """The keys and values before the first token."""
        cached = {name: each.shape for name, each in self.inputs.items() if "past" in name}
        return {name: torch.zeros(rows, s[1], 0, s[3]) for name, s in cached.items()}


def export(case: Case, folder: Path, **options: Any) -> Any:
    """Export a random model of `transformers` as ONNX. Returns the model."""
    theirs = hf_model(case)
    module = ours_of(theirs)
    LanguageModel(module.spec, module, None).save_onnx(folder, **options)
    return theirs


def random_texts(rows: int, length: int, config: Any) -> dict[str, Tensor]:
    """Token ids, of which the second half of the last row is padding."""
    generator = torch.Generator().manual_seed(rows * length)
    ids = torch.randint(3, config.vocab_size, (rows, length), generator=generator)
    mask = torch.ones_like(ids)
    mask[-1, (length + 1) // 2 :] = 0
    pad = config.pad_token_id or 0
    return {"input_ids": ids.where(mask.bool(), pad), "attention_mask": mask}


def assert_close(ours: Tensor, theirs: Tensor, mask: Tensor) -> None:
    """Compare the outputs of tokens, or of whole texts."""
    per_token = ours.ndim > 1 and ours.shape[:2] == mask.shape
    where = mask.bool() if per_token else slice(None)
    torch.testing.assert_close(ours[where], theirs[where], rtol=1e-4, atol=2e-5)


def check_encoder(case: Case, folder: Path) -> None:
    theirs = export(case, folder)
    session = Session(folder / ONNX / "model.onnx")
    assert all(x.shape == ["batch_size", "sequence_length"] for x in session.inputs.values())
    for rows, length in SIZES:
        inputs = random_texts(rows, length, theirs.config)
        mask = inputs["attention_mask"]
        if "token_type_ids" in session.inputs:
            types = torch.arange(length).expand(rows, -1) >= length // 2
            inputs["token_type_ids"] = types.long()
        with torch.no_grad():
            expected = theirs(**inputs)
        for name, output in session(**inputs).items():
            if name == "sentence_embedding":
                sums = (expected["last_hidden_state"] * mask[..., None]).sum(1)
                assert_close(output, torch.nn.functional.normalize(sums, dim=-1), mask)
            else:
                assert_close(output, expected[name], mask)


def check_decoder(case: Case, folder: Path) -> None:
    theirs = export(case, folder)
    session = Session(folder / ONNX / "model.onnx")
    total = "past_sequence_length + sequence_length"
    assert session.inputs["attention_mask"].shape == ["batch_size", total]
    for rows, length in SIZES:
        inputs = random_texts(rows, length + 5, theirs.config)
        mask = inputs["attention_mask"] = inputs["attention_mask"].flip(1)  # padding on the left
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        takes = "position_ids" in inspect.signature(theirs.forward).parameters
        with torch.no_grad():
            expected = theirs(**inputs, **({"position_ids": positions} if takes else {})).logits
        past, start = session.empty_cache(rows), 0
        for count in (length, 1, 3, 1):
            end = start + count
            outputs = session(
                input_ids=inputs["input_ids"][:, start:end],
                attention_mask=mask[:, :end],
                position_ids=positions[:, start:end],
                **past,
            )
            assert_close(outputs["logits"], expected[:, start:end], mask[:, start:end])
            past = cache_of(outputs)
            start = end


def cache_of(outputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The keys and values that a step returns, as inputs of the next step."""
    return {
        name.replace("present", "past_key_values"): x
        for name, x in outputs.items()
        if name != "logits"
    }


def check_encoder_decoder(case: Case, folder: Path) -> None:
    theirs = export(case, folder)
    encoder = Session(folder / ONNX / "encoder_model.onnx")
    decoder = Session(folder / ONNX / "decoder_model_merged.onnx")
    for rows, length in SIZES:
        source = random_texts(rows, length, theirs.config)
        ids = random_texts(rows + 1, 8, theirs.config)["input_ids"][:rows]  # without padding
        with torch.no_grad():
            expected = theirs(**source, decoder_input_ids=ids).logits
        fixed = {
            "encoder_attention_mask": source["attention_mask"],
            "encoder_hidden_states": encoder(**source)["last_hidden_state"],
        }
        past, start = decoder.empty_cache(rows), 0
        for count in (3, 1, 2, 1, 1):
            end = start + count
            outputs = decoder(input_ids=ids[:, start:end], **fixed, **past)
            expected_part = expected[:, start:end]
            torch.testing.assert_close(outputs["logits"], expected_part, rtol=1e-4, atol=2e-5)
            past = cache_of(outputs)
            start = end


QUICK = Case("BertForQuestionAnswering", {"num_hidden_layers": 1})
ENCODERS = [
    Case("BertForMaskedLM", {}),
    Case("BertModel", {}),
    Case("BertForSequenceClassification", {}),
    Case("BertForTokenClassification", {}),
    Case("BertForQuestionAnswering", {}),
    Case("RobertaForMaskedLM", {}),
    Case("DistilBertForMaskedLM", {}),
    Case("ModernBertForMaskedLM", {}),
    Case("DebertaV2ForMaskedLM", {}),
    Case("DebertaForMaskedLM", {}),
    Case("ElectraForPreTraining", {}),
    Case("AlbertForMaskedLM", {}),
    Case("LongformerForMaskedLM", {}),
    Case("GPT2ForSequenceClassification", {"pad_token_id": 0}),
    Case("T5EncoderModel", {}),
]
DECODERS = [
    Case("GPT2LMHeadModel", {}),
    Case("LlamaForCausalLM", {}),
    Case("Qwen3ForCausalLM", {}),
    Case("MistralForCausalLM", {}),
    Case("GemmaForCausalLM", {}),
    Case("Gemma2ForCausalLM", {}),
    Case("Gemma3ForCausalLM", {}),
    Case("OPTForCausalLM", {}),
    Case("GPTNeoXForCausalLM", {}),
    Case("BloomForCausalLM", {}),
    Case("PhiForCausalLM", {}),
    Case("Phi3ForCausalLM", {}),
    Case("FalconForCausalLM", {}),
]
ENCODER_DECODERS = [
    Case("T5ForConditionalGeneration", {}),
    Case("BartForConditionalGeneration", {}),
    Case("MarianMTModel", {}),
    Case("MBartForConditionalGeneration", {}),
    Case("M2M100ForConditionalGeneration", {}),
    Case("PegasusForConditionalGeneration", {}),
]


@pytest.mark.slow
@pytest.mark.parametrize("case", ENCODERS, ids=case_id)
def test_encoders_and_heads_are_equal(case: Case, tmp_path: Path) -> None:
    check_encoder(case, tmp_path / "out")


@pytest.mark.slow
@pytest.mark.parametrize("case", DECODERS, ids=case_id)
def test_decoders_with_caches_are_equal(case: Case, tmp_path: Path) -> None:
    check_decoder(case, tmp_path / "out")


@pytest.mark.slow
@pytest.mark.parametrize("case", ENCODER_DECODERS, ids=case_id)
def test_encoder_decoders_with_caches_are_equal(case: Case, tmp_path: Path) -> None:
    check_encoder_decoder(case, tmp_path / "out")


def test_a_small_encoder_is_equal(tmp_path: Path) -> None:
    check_encoder(QUICK, tmp_path / "out")


@pytest.mark.parametrize(
    ("case", "problem"),
    [
        (Case("BigBirdForMaskedLM", {}), 'the mixer "block-sparse-attention"'),
        (Case("XLNetLMHeadModel", {}), 'the mixer "transformer-xl-attention"'),
        (Case("MixtralForCausalLM", {}), "a mixture of experts"),
        (Case("Mamba2ForCausalLM", {}), 'the mixer "mamba2"'),
        (Case("DeepseekV2ForCausalLM", {}), 'the mixer "latent-attention"'),
        (Case("LongformerForSequenceClassification", {}), "global attention"),
        (Case("BartForSequenceClassification", {}), "an encoder-decoder with another head"),
    ],
    ids=str,
)
def test_a_part_that_cannot_be_exported_is_named(case: Case, problem: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=problem):
        export(case, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_unknown_weight_type_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match='"q4" is not known; it is one of: f32, f16, int8'):
        export(QUICK, tmp_path / "out", weight_type="q4")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("weight_type", "file", "tolerance"),
    [("f16", "model_fp16.onnx", 0.02), ("int8", "model_quantized.onnx", 0.1)],
)
@pytest.mark.parametrize(
    "case", [Case("BertForMaskedLM", {}), Case("LlamaForCausalLM", {})], ids=case_id
)
def test_smaller_weights_are_close(
    case: Case, weight_type: str, file: str, tolerance: float, tmp_path: Path
) -> None:
    theirs = export(case, tmp_path / "out", weight_type=weight_type)
    assert [each.name for each in (tmp_path / "out" / ONNX).iterdir()] == [file]
    session = Session(tmp_path / "out" / ONNX / file)
    inputs = random_texts(1, 13, theirs.config)
    inputs = {"input_ids": inputs["input_ids"], "attention_mask": torch.ones(1, 13).long()}
    with torch.no_grad():
        expected = theirs(**inputs).logits
    if "position_ids" in session.inputs:
        inputs |= {"position_ids": torch.arange(13)[None], **session.empty_cache(1)}
    if "token_type_ids" in session.inputs:
        inputs["token_type_ids"] = torch.zeros(1, 13).long()
    difference = (session(**inputs)["logits"] - expected).abs().max() / expected.abs().max()
    assert 1e-6 < difference < tolerance


@pytest.mark.slow
def test_large_weights_are_in_a_second_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnx_file, "_MAX_BYTES", 1000)
    check_encoder(QUICK, tmp_path / "out")
    files = {each.name for each in (tmp_path / "out" / ONNX).iterdir()}
    assert files == {"model.onnx", "model.onnx_data"}
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["transformers.js_config"] == {"use_external_data_format": True}


@pytest.mark.slow
def test_the_command_writes_onnx_beside_the_files_of_hugging_face(
    tokenizer: Tokenizer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved, out = str(tmp_path / "saved"), str(tmp_path / "out")
    config = {"vocab_size": tokenizer.vocab_size, "num_hidden_layers": 1}
    module = ours_of(hf_model(Case("LlamaForCausalLM", config)))
    LanguageModel(module.spec, module, tokenizer).save(saved)
    assert main(["export", saved, out, "--format", "onnx"]) == 0
    assert "onnx/model.onnx" in capsys.readouterr().out
    assert main(["export", saved, out, "--format", "onnx", "--type", "int8", "--overwrite"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{out}: ONNX, int8"
    names = ["config.json", "generation_config.json", "onnx/model_quantized.onnx"]
    assert [line.split()[0] for line in lines[1:]] == [
        *names,
        "special_tokens_map.json",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    assert main(["export", saved, out, "--format", "onnx", "--type", "q8_0"]) == 2
    assert "--format onnx takes --type f32, f16, int8" in capsys.readouterr().err
