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
from trivium.adapt.adapter import merge_weights, with_adapter
from trivium.errors import CheckpointError, SpecError
from trivium.interop.families import FAMILIES
from trivium.interop.peft_format import save_read_adapter
from trivium.interop.peft_reader import read_adapter
from trivium.interop.settings import Settings
from trivium.language_model import LanguageModel
from trivium.model_loading import load
from trivium.models import build
from trivium.text import Tokenizer

pytestmark = pytest.mark.usefixtures("double_precision")

peft = pytest.importorskip("peft")
# The class with a head over the vocabulary, or the first; peft refuses Mamba's layers.
ENDS = ("ForMaskedLM", "ForCausalLM", "LMHeadModel", "MTModel", "ForConditionalGeneration")
FAMILY_CLASSES = [
    next((n for n in family.architectures if n.endswith(ENDS)), next(iter(family.architectures)))
    for family in FAMILIES.values()
    if not family.model_type.startswith("mamba")
]
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
    # The same for a base whose weights are read one at a time.
    outline, state = build(base.spec, device="meta"), base.state_dict()
    adapter = read_adapter(tmp_path, outline, state, model_type=hf.config.model_type)
    weights = merge_weights(state, adapter)
    torch.testing.assert_close(dict(weights), merged.state_dict(), rtol=1e-9, atol=1e-9)


def test_matrices_that_are_always_tied_are_not_untied(tmp_path):
    hf = hf_model(Case("BartForConditionalGeneration", {}))
    base = ours_of(copy.deepcopy(hf))
    random_adapter(hf, {"target_modules": ["q_proj", "lm_head"]}, tmp_path)
    with pytest.raises(CheckpointError, match="bart always ties token embeddings and output"):
        read_adapter(tmp_path, base, model_type="bart")


def read_with(folder, base, model_type="gpt2"):
    return with_adapter(base, read_adapter(folder, base, model_type=model_type))


@pytest.mark.parametrize("name", FAMILY_CLASSES)
def test_an_adapter_of_all_linear_layers_is_read_in_every_family(name, tmp_path):
    hf = hf_model(Case(name, {}))
    base, inputs = ours_of(copy.deepcopy(hf)), inputs_of(Case(name, {}))
    theirs = random_adapter(hf, {"target_modules": "all-linear"}, tmp_path)
    model = read_with(tmp_path, base, hf.config.model_type)
    with torch.no_grad():
        assert_equal(local_outputs(model, inputs), hf_outputs(theirs, inputs), inputs, name)


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


def test_an_adapter_of_the_model_without_a_head_is_added_to_one_with_a_head(tmp_path):
    """The names of BertModel's weights lack the prefix that those of BertForMaskedLM have."""
    hf = hf_model(Case("BertForMaskedLM", {}))
    base = ours_of(copy.deepcopy(hf))
    theirs = random_adapter(hf.bert, {"target_modules": ["query", "dense"]}, tmp_path)
    model, inputs = read_with(tmp_path, base, "bert"), inputs_of(Case("BertForMaskedLM", {}))
    with torch.no_grad():
        expected, actual = theirs(**inputs).last_hidden_state, model(**inputs)
    mask = inputs["attention_mask"].bool()
    torch.testing.assert_close(actual[mask], expected[mask], rtol=1e-9, atol=1e-9)


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
    with pytest.raises(CheckpointError, match=r"base of this adapter: .* does not name it"):
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
    change(tmp_path / "mine", {"base_model_name_or_path": str(tmp_path / "nowhere")})
    with pytest.raises(CheckpointError, match=r"mine: the base of this adapter: .*nowhere"):
        load(tmp_path / "mine")
    change(tmp_path / "mine", {"base_model_name_or_path": str(tmp_path / "base")})
    other = hf_model(Case("LlamaForCausalLM", {}))
    random_adapter(other, {"target_modules": ["q_proj"]}, tmp_path / "second")
    change(tmp_path / "second", {"base_model_name_or_path": str(tmp_path / "mine")})
    stacked = load(tmp_path / "second", device="cpu")
    expected = lm.merge_adapter().with_adapter(tmp_path / "second")
    with torch.no_grad():
        actual, reference = (one.module.logits(one.module(ids)) for one in (stacked, expected))
    torch.testing.assert_close(actual, reference, rtol=1e-9, atol=1e-9)
    plain = load(tmp_path / "base", device="cpu")
    both = [plain.with_adapter(tmp_path / "mine", name=name) for name in ("a", "b")]
    tensors = {each.data_ptr() for lm in (plain, *both) for each in lm.module.parameters()}
    own = 4 * len(both[0].adapter.updates)
    assert len(tensors) == len(list(plain.module.parameters())) + own
    outline = load(tmp_path / "mine", device="meta")
    assert outline.module.device.type == "meta"
    assert outline.capabilities == lm.capabilities


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("PhiForCausalLM", {"target_modules": ["q_proj"], "bias": "all"}),
        ("GPT2LMHeadModel", {"target_modules": ["c_attn"], "trainable_token_indices": [7, 2]}),
        ("GPT2LMHeadModel", {"target_modules": ["c_attn"], "modules_to_save": ["wte"]}),
        ("GPT2LMHeadModel", {"target_modules": ["c_fc"], "modules_to_save": ["wte", "lm_head"]}),
        ("BertForMaskedLM", {"target_modules": ["query"], "bias": "all"}),
    ],
    ids=case_id,
)
def test_whole_weights_replace_packed_ones(name, options, tmp_path):
    """As if the model was packed with the adapter, up to the rounding to 8 bits."""
    hf = hf_model(Case(name, {}))
    base = ours_of(copy.deepcopy(hf))
    random_adapter(hf, options, tmp_path)
    expected = outputs(read_with(tmp_path, base, hf.config.model_type), name)[0]
    packed = pack(copy.deepcopy(base), "int8")
    actual = outputs(read_with(tmp_path, packed, hf.config.model_type), name)[0]
    assert (actual - expected).abs().max() / expected.abs().max() < 0.1


def test_an_adapter_is_added_to_packed_weights(tmp_path):
    """DoRA's norms are computed from the packed weights."""
    hf = hf_model(Case("LlamaForCausalLM", {}))
    base = ours_of(copy.deepcopy(hf))
    random_adapter(hf, {"target_modules": "all-linear", "use_dora": True}, tmp_path)
    expected = outputs(read_with(tmp_path, base, "llama"), "LlamaForCausalLM")
    packed = pack(copy.deepcopy(base), "int8")
    actual = outputs(read_with(tmp_path, packed, "llama"), "LlamaForCausalLM")
    assert (actual[0] - expected[0]).abs().max() / expected[0].abs().max() < 0.1
    afterwards = pack(read_with(tmp_path, base, "llama"), "int8")
    assert_same(outputs(afterwards, "LlamaForCausalLM"), actual)


def test_a_tokenizer_and_a_template_in_the_folder_replace_those_of_the_base(tmp_path):
    hf = hf_model(Case("LlamaForCausalLM", {}))
    base = ours_of(copy.deepcopy(hf))
    random_adapter(hf, {"target_modules": ["q_proj"]}, tmp_path)
    own, other = (
        Tokenizer.train("whitespace", texts=["a b c d e f"], vocab_size=size, progress=False)
        for size in (9, 8)
    )
    lm = LanguageModel(base.spec, base, own, Settings(chat_template="{{ messages }}"))
    assert lm.with_adapter(tmp_path).tokenizer is own
    assert lm.with_adapter(tmp_path).settings.chat_template == "{{ messages }}"
    other.save(tmp_path)
    (tmp_path / "chat_template.jinja").write_text("{{ messages[0] }}")
    changed = lm.with_adapter(tmp_path)
    assert changed.tokenizer.vocab_size == other.vocab_size != own.vocab_size
    assert changed.settings.chat_template == "{{ messages[0] }}"
    assert lm.tokenizer is own
