"""Adapters in PEFT's files are read: their logits equal those of `peft`, in float64."""

from __future__ import annotations

import copy
import json
import warnings

import pytest
import torch
from hf_models import Case, assert_equal, hf_model, hf_outputs, inputs_of, local_outputs
from hugging_face import ours_of
from safetensors.torch import load_file, save_file

from trivium.adapt import merged_state, pack
from trivium.adapt.adapter import with_adapter
from trivium.errors import CheckpointError, SpecError
from trivium.interop.peft_format import save_read_adapter
from trivium.interop.peft_reader import read_adapter
from trivium.language_model import LanguageModel
from trivium.model_loading import load
from trivium.models import build

pytestmark = pytest.mark.usefixtures("double_precision")

peft = pytest.importorskip("peft")
CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
CASES = [
    ("GPT2LMHeadModel", {"target_modules": ["c_attn", "c_proj"], "use_rslora": True}),
    (
        "GPT2LMHeadModel",
        {
            "target_modules": ["c_attn"],
            "bias": "all",
            "modules_to_save": ["ln_f"],
            "use_dora": True,
        },
    ),
    ("GPT2LMHeadModel", {"target_modules": ["c_attn"], "bias": "lora_only"}),
    ("GPT2LMHeadModel", {"target_modules": ["wte", "lm_head"]}),
    ("GPT2LMHeadModel", {"target_modules": ["wte", "c_fc"]}),
    ("GPT2LMHeadModel", {"target_modules": ["c_attn"], "modules_to_save": ["wte"]}),
    ("GPT2LMHeadModel", {"target_modules": ["c_attn"], "modules_to_save": ["wte", "lm_head"]}),
    (
        "GPT2LMHeadModel",
        {"target_modules": ["c_attn"], "modules_to_save": ["wte"], "ensure_weight_tying": True},
    ),
    ("GPT2LMHeadModel", {"target_modules": ["c_attn"], "trainable_token_indices": [7, 2]}),
    ("GPT2LMHeadModel", {"target_modules": ["c_fc"], "trainable_token_indices": {"wte": [7, 2]}}),
    (
        "LlamaForCausalLM",
        {
            "target_modules": "all-linear",
            "rank_pattern": {"q_proj": 5, "layers.0.self_attn.v_proj": 2},
            "alpha_pattern": {"v_proj": 5},
            "use_rslora": True,
        },
    ),
    ("LlamaForCausalLM", {"target_modules": r".*layers\.0.*(q|up)_proj", "use_dora": True}),
    (
        "LlamaForCausalLM",
        {"target_modules": ["q_proj"], "layers_to_transform": [1], "layers_pattern": "layers"},
    ),
    ("LlamaForSequenceClassification", {"target_modules": "all-linear", "task_type": "SEQ_CLS"}),
    ("Qwen3ForCausalLM", {"target_modules": ["q_proj", "lm_head", "embed_tokens"]}),
    (
        "Gemma3ForCausalLM",
        {
            "target_modules": ["q_proj"],
            "modules_to_save": ["embed_tokens"],
            "ensure_weight_tying": True,
        },
    ),
    ("Phi3ForCausalLM", {"target_modules": "all-linear", "use_dora": True}),
    ("GPTNeoXForCausalLM", {"target_modules": "all-linear", "use_dora": True, "bias": "all"}),
    ("BloomForCausalLM", {"target_modules": "all-linear"}),
    ("BertForMaskedLM", {"target_modules": "all-linear"}),
    ("BertForSequenceClassification", {"target_modules": "all-linear", "task_type": "SEQ_CLS"}),
    ("BertModel", {"target_modules": "all-linear"}),
    (
        "XLMRobertaForSequenceClassification",
        {"target_modules": ["query", "value"], "task_type": "SEQ_CLS"},
    ),
    ("T5ForConditionalGeneration", {"target_modules": "all-linear", "task_type": "SEQ_2_SEQ_LM"}),
    ("MixtralForCausalLM", {"target_modules": ["q_proj", "gate"]}),
    (
        "MixtralForCausalLM",
        {
            "target_modules": ["q_proj"],
            "target_parameters": ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"],
        },
    ),
    (
        "Qwen3MoeForCausalLM",
        {"target_modules": ["q_proj"], "target_parameters": ["mlp.experts.down_proj"]},
    ),
    (
        "GptOssForCausalLM",
        {
            "target_modules": ["q_proj"],
            "target_parameters": ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"],
        },
    ),
]


def case_id(value):
    """The class, and what the adapter has."""
    return value if isinstance(value, str) else "-".join(map(str, value))


def random_adapter(hf, options, folder, **kwargs):
    """The model of `transformers` with an adapter whose weights are random, saved to a folder."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of tied weights
        model = peft.get_peft_model(hf, peft.LoraConfig(**{"r": 3, "lora_alpha": 5, **options}))
        generator = torch.Generator().manual_seed(3)
        for weight in model.parameters():
            if weight.requires_grad:
                weight.data += 0.2 * torch.randn(weight.shape, generator=generator)
        model.save_pretrained(folder, **kwargs)
    return model.eval()


def outputs(model, name):
    with torch.no_grad():
        return [each.clone() for each in local_outputs(model, inputs_of(Case(name, {})))]


def assert_same(actual, expected):
    for one, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("name", "options"), CASES, ids=case_id)
def test_logits_equal_those_of_peft(name, options, tmp_path):
    hf = hf_model(Case(name, {}))
    base = ours_of(copy.deepcopy(hf))  # peft trains biases in place
    before, inputs = outputs(base, name), inputs_of(Case(name, {}))
    theirs = random_adapter(hf, options, tmp_path)
    adapter = read_adapter(tmp_path, base, model_type=hf.config.model_type)
    model = with_adapter(base, adapter)
    with torch.no_grad():
        assert_equal(local_outputs(model, inputs), hf_outputs(theirs, inputs), inputs, name)
    assert_same(outputs(base, name), before)
    assert (outputs(model, name)[0] - before[0]).abs().max() > 0.01
    merged = build(model.spec, seed=0).eval()
    merged.load_state_dict(merged_state(model))
    assert_same(outputs(merged, name), outputs(model, name))


def read_with(folder, base, model_type="gpt2"):
    return with_adapter(base, read_adapter(folder, base, model_type=model_type))


WRITTEN = [case for case in CASES[:19] if case[1]["target_modules"] != ["wte", "lm_head"]]


@pytest.mark.parametrize(("name", "options"), WRITTEN, ids=case_id)
def test_an_adapter_that_was_read_is_written_for_peft(name, options, tmp_path):
    """`peft` reads the written files, and so does this library."""
    hf = hf_model(Case(name, {}))
    base = ours_of(copy.deepcopy(hf))
    random_adapter(copy.deepcopy(hf), options, tmp_path / "first")
    adapter = read_adapter(tmp_path / "first", base, model_type=hf.config.model_type)
    model = with_adapter(base, adapter)
    save_read_adapter(tmp_path / "second", model, adapter, model_type=hf.config.model_type)
    again = read_with(tmp_path / "second", base, hf.config.model_type)
    assert_same(outputs(again, name), outputs(model, name))
    inputs = inputs_of(Case(name, {}))
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        theirs = peft.PeftModel.from_pretrained(hf, tmp_path / "second").eval()
        assert_equal(local_outputs(model, inputs), hf_outputs(theirs, inputs), inputs, name)


@pytest.mark.parametrize(
    ("name", "task", "kind", "targets"),
    [
        ("BertForPreTraining", "SEQ_CLS", "classifier", "all-linear"),
        ("XLMRobertaForMaskedLM", "TOKEN_CLS", "tagger", ["query"]),
        ("LlamaForCausalLM", "SEQ_CLS", "classifier", "all-linear"),
        ("Qwen3ForCausalLM", "QUESTION_ANS", "span", ["q_proj"]),
    ],
)
def test_the_head_of_a_task_is_added_to_a_base_without_it(name, task, kind, targets, tmp_path):
    ends = {
        "SEQ_CLS": "ForSequenceClassification",
        "TOKEN_CLS": "ForTokenClassification",
        "QUESTION_ANS": "ForQuestionAnswering",
    }
    pretrained = hf_model(Case(name, {}))
    family = name.partition("For")[0]
    labelled = hf_model(Case(family + ends[task], {}), seed=2)
    prefix = f"{labelled.base_model_prefix}."  # "transformer." in some classes, not "model."
    shared = {
        key.replace(f"{pretrained.base_model_prefix}.", prefix, 1): each
        for key, each in pretrained.state_dict().items()
    }
    kept = labelled.load_state_dict(shared, strict=False).missing_keys
    assert len(kept) <= 4, "a head alone"
    base = ours_of(pretrained)
    theirs = random_adapter(labelled, {"target_modules": targets, "task_type": task}, tmp_path)
    model = read_with(tmp_path, base, labelled.config.model_type)
    assert [head.kind for head in model.spec.heads] == [kind]
    inputs = inputs_of(Case(family + ends[task], {}))
    with torch.no_grad():
        assert_equal(local_outputs(model, inputs), hf_outputs(theirs, inputs), inputs, name)


def test_a_larger_vocabulary_of_the_adapter_replaces_that_of_the_base(tmp_path):
    hf = hf_model(Case("LlamaForCausalLM", {}))
    base = ours_of(copy.deepcopy(hf))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        hf.resize_token_embeddings(base.spec.vocab_size + 3, mean_resizing=False)
    theirs = random_adapter(
        hf, {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens", "lm_head"]}, tmp_path
    )
    model = read_with(tmp_path, base, "llama")
    assert model.spec.vocab_size == base.spec.vocab_size + 3
    ids = torch.tensor([[5, base.spec.vocab_size + 1, 7]])
    with torch.no_grad():
        torch.testing.assert_close(
            model.logits(model(ids)), theirs(ids).logits, rtol=1e-9, atol=1e-9
        )


def change(folder, config=None, tensors=None):
    """Change the files of an adapter."""
    options = {**json.loads((folder / CONFIG).read_text()), **(config or {})}
    (folder / CONFIG).write_text(json.dumps(options))
    if tensors is not None:
        save_file(tensors(load_file(folder / WEIGHTS)), folder / WEIGHTS)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"peft_type": "IA3"}, "peft_type.*IA3.*only .LORA."),
        ({"init_lora_weights": "pissa"}, "init_lora_weights.*pissa.*path_initial_model"),
        ({"lora_bias": True}, "lora_bias.*not supported"),
        ({"alora_invocation_tokens": [1, 2]}, "alora_invocation_tokens"),
        ({"layer_replication": [[0, 1], [0, 2]]}, "layer_replication"),
        ({"future_option": "yes"}, "future_option.*not supported"),
        ({"r": 4}, "has rank 3, but adapter_config.json says 4"),
        ({"lora_alpha": "much"}, "lora_alpha.*much"),
        ({"rank_pattern": {"(": 2}}, "no pattern of names"),
        ({"rank_pattern": [3]}, "rank_pattern"),
        ({"target_modules": ["c_proj"]}, "does not select it"),
        ({"target_modules": "("}, "no regular expression"),
        ({"use_dora": True}, "use_dora"),
        ({"task_type": "SEQ_CLS"}, "classifier head, which neither it nor the base contains"),
    ],
    ids=str,
)
def test_what_would_change_the_result_is_refused_by_name(config, message, tmp_path):
    hf = hf_model(Case("GPT2LMHeadModel", {}))
    base = ours_of(copy.deepcopy(hf))
    random_adapter(hf, {"target_modules": ["c_attn"]}, tmp_path)
    change(tmp_path, config)
    with pytest.raises(CheckpointError, match=message):
        read_adapter(tmp_path, base, model_type="gpt2")


def rename(old, new):
    return lambda tensors: {name.replace(old, new): each for name, each in tensors.items()}


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        (rename("c_attn", "c_nothing"), "c_nothing.*does not have"),
        (rename("base_model.model.", ""), "does not begin with base_model.model."),
        (
            lambda all: {n: each for n, each in all.items() if "lora_A" in n},
            "one matrix is missing",
        ),
        (lambda all: {n: each[:, 1:].contiguous() for n, each in all.items()}, "do not fit"),
        (lambda all: {n: each * float("nan") for n, each in all.items()}, "not finite"),
    ],
)
def test_files_that_do_not_fit_the_model_are_refused(tensors, message, tmp_path):
    hf = hf_model(Case("GPT2LMHeadModel", {}))
    base = ours_of(copy.deepcopy(hf))
    random_adapter(hf, {"target_modules": ["c_attn"]}, tmp_path)
    change(tmp_path, {"target_modules": "all-linear"}, tensors)
    with pytest.raises(CheckpointError, match=message):
        read_adapter(tmp_path, base, model_type="gpt2")


def test_a_folder_without_weights_and_a_model_with_an_adapter_are_refused(tmp_path):
    hf = hf_model(Case("GPT2LMHeadModel", {}))
    base = ours_of(copy.deepcopy(hf))
    random_adapter(hf, {"target_modules": ["c_attn"]}, tmp_path)
    lm = LanguageModel(base.spec, base)
    with pytest.raises(SpecError, match="has no adapter"):
        lm.save_adapter(tmp_path / "out")
    one = lm.with_adapter(tmp_path, name="one")
    assert one.adapter.name == "one"
    assert lm.adapter is None
    with pytest.raises(SpecError, match="has the adapter 'one' already"):
        one.with_adapter(tmp_path)
    with pytest.raises(SpecError, match="merge_adapter"):
        one.save(tmp_path / "whole")
    one.merge_adapter().save(tmp_path / "whole")
    (tmp_path / WEIGHTS).rename(tmp_path / "adapter_model.bin")
    with pytest.raises(CheckpointError, match=r"only adapter_model.bin"):
        lm.with_adapter(tmp_path)


def test_load_reads_the_base_and_shares_its_weights(tmp_path):
    hf = hf_model(Case("LlamaForCausalLM", {}))
    base = ours_of(copy.deepcopy(hf))
    LanguageModel(base.spec, base).save(tmp_path / "base")
    theirs = random_adapter(hf, {"target_modules": ["q_proj", "down_proj"]}, tmp_path / "mine")
    change(tmp_path / "mine", {"base_model_name_or_path": None})
    with pytest.raises(CheckpointError, match="does not name its base"):
        load(tmp_path / "mine")
    change(tmp_path / "mine", {"base_model_name_or_path": str(tmp_path / "base")})
    lm = load(tmp_path / "mine", device="cpu")
    assert (lm.adapter.name, lm.adapter.base) == ("mine", str(tmp_path / "base"))
    ids = torch.tensor([[5, 6, 7]])
    with torch.no_grad():
        expected = theirs(ids).logits
        for each in (lm, lm.merge_adapter()):
            actual = each.module.logits(each.module(ids))
            torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-9)
    plain = load(tmp_path / "base", device="cpu")
    both = [plain.with_adapter(tmp_path / "mine", name=name) for name in ("a", "b")]
    tensors = {each.data_ptr() for lm in (plain, *both) for each in lm.module.parameters()}
    own = 4 * len(both[0].adapter.updates)
    assert len(tensors) == len(list(plain.module.parameters())) + own
    outline = load(tmp_path / "mine", device="meta")
    assert outline.module.device.type == "meta"
    assert outline.capabilities == lm.capabilities


def test_an_adapter_is_added_to_packed_weights(tmp_path):
    """DoRA's norms are computed from the packed weights."""
    hf = hf_model(Case("LlamaForCausalLM", {}))
    base = ours_of(copy.deepcopy(hf))
    random_adapter(hf, {"target_modules": "all-linear", "use_dora": True}, tmp_path)
    expected = outputs(read_with(tmp_path, base, "llama"), "LlamaForCausalLM")
    packed = pack(copy.deepcopy(base), "int8")
    actual = outputs(read_with(tmp_path, packed, "llama"), "LlamaForCausalLM")
    assert (actual[0] - expected[0]).abs().max() / expected[0].abs().max() < 0.1
