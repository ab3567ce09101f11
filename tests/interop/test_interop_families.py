"""Every class of every family: equal logits when read, and again when written back."""

from __future__ import annotations

import json

import pytest
import torch
from hf_models import (
    TWO_VOCABULARIES,
    VARIANTS,
    Case,
    assert_equal,
    case_id,
    hf_model,
    hf_outputs,
    inputs_of,
    local_outputs,
    tolerance,
    transformers,
)
from hugging_face import options_of, ours_of
from safetensors.torch import load_file, save_file

import trivium
from trivium.errors import CheckpointError
from trivium.interop.convert import from_hugging_face, hf_weight_map, to_hugging_face
from trivium.interop.families import FAMILIES
from trivium.interop.spec_config import read_spec, spec_to_config
from trivium.stored_model import open_model

pytestmark = pytest.mark.usefixtures("double_precision")

CLASSES = [
    name
    for family in FAMILIES.values()
    for name in family.architectures
    if not name.endswith("MultipleChoice")
]
LANGUAGE_MODELS = [
    *(name for name in CLASSES if name.endswith(("MaskedLM", "CausalLM", "LMHeadModel"))),
    *(name for name in CLASSES if name.endswith(("ForConditionalGeneration", "MTModel"))),
]
CASES = [
    *(Case(name, changes) for name in CLASSES for changes in [{}, *VARIANTS.get(name, [])]),
    *(
        Case("MarianMTModel", {**TWO_VOCABULARIES, "tie_word_embeddings": tied})
        for tied in (True, False)
    ),
    Case("MarianModel", TWO_VOCABULARIES),
]
# Models that an earlier family can express as well, and how that is written.
ALSO = [
    (Case("ElectraForMaskedLM", {"embedding_size": 22}), "BertForMaskedLM"),
    (Case("MistralForCausalLM", {"sliding_window": None}), "LlamaForCausalLM"),
    (Case("XLMRobertaForMaskedLM", {}), "RobertaForMaskedLM"),
    (Case("CamembertForTokenClassification", {}), "RobertaForTokenClassification"),
    (Case("Phi3ForCausalLM", {}), "LlamaForCausalLM"),
    (Case("MT5Model", {}), "T5Model"),
]


@pytest.mark.filterwarnings('ignore:config.json. "time_step_limit" is')
@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_every_class_and_variant_both_ways(case: Case) -> None:
    """Equal logits here, and in `transformers` again after writing and reading."""
    original, inputs = hf_model(case), inputs_of(case)
    local = ours_of(original)
    family = FAMILIES[original.config.model_type]
    with torch.no_grad():
        assert_equal(local_outputs(local, inputs), hf_outputs(original, inputs), inputs, case.name)
        config = spec_to_config(family, local.spec)
        assert (config.architecture, config.differences) == (case.name, ()), case
        options, tensors = to_hugging_face(local, original.config.model_type)
        assert options["architectures"] == [case.name]
        again = reloaded(type(original), original, options, tensors)
        assert_equal(local_outputs(local, inputs), hf_outputs(again, inputs), inputs, case.name)
    assert read_spec(family, case.name, options_of(again), tensors) == local.spec, case


@pytest.mark.parametrize(("case", "written"), ALSO, ids=[case.id for case, _ in ALSO])
def test_a_model_of_several_families_is_written_as_the_first(case: Case, written: str) -> None:
    """If nothing says which family it was."""
    original, inputs = hf_model(case), inputs_of(case)
    local = ours_of(original)
    options, tensors = to_hugging_face(local)
    assert options["architectures"] == [written]
    again = reloaded(getattr(transformers, written), original, options, tensors)
    with torch.no_grad():
        assert_equal(local_outputs(local, inputs), hf_outputs(again, inputs), inputs, case.name)


def reloaded(hf_class, original, options, tensors):
    """A new model of the class from what was written, with nothing missing or unexpected."""
    named = {k: v for k, v in options.items() if k not in ("model_type", "architectures")}
    # Which token is padding is written from the tokenizer.
    named["pad_token_id"] = original.config.pad_token_id
    named["eos_token_id"] = original.config.eos_token_id
    config = hf_class.config_class(**named)
    if any(".experts." in name for name in tensors):  # fused in memory, which files are not
        config._experts_implementation = "eager"
        model, problems = hf_class.from_pretrained(
            None, config=config, state_dict=tensors, dtype=torch.float64, output_loading_info=True
        )
        assert not any(problems.values()), problems
        return model.eval()
    model = hf_class(config).to(original.dtype).eval()
    base = f"{model.base_model_prefix}."
    known = model.state_dict().keys()
    tensors = {n if n in known else n.removeprefix(base): t for n, t in tensors.items()}
    missing, unexpected = model.load_state_dict(tensors, strict=False)
    model.tie_weights()
    named = dict(model.named_parameters(remove_duplicate=False))
    found = {id(weight) for name, weight in named.items() if name in tensors}  # or tied to those
    trained = {n for n, weight in named.items() if weight.requires_grad and id(weight) not in found}
    assert (trained & {*missing}, unexpected) == (set(), [])
    return model


@pytest.mark.parametrize("name", LANGUAGE_MODELS)
def test_left_padding_and_padding_tokens_inside_a_text(name):
    """Positions count columns, real tokens (OPT) or tokens that are not padding (RoBERTa)."""
    original, inputs = hf_model(Case(name, {})), inputs_of(Case(name, {}))
    local, mask = ours_of(original), inputs["attention_mask"]
    flipped = {key: value.flip(1) for key, value in inputs.items()}
    inside = {**inputs, "input_ids": inputs["input_ids"].clone()}
    inside["input_ids"][:, 3] = original.config.pad_token_id
    inside["attention_mask"] = torch.ones_like(mask)
    # Their RWKV takes no mask: it reads padding before a text.
    for changed in (inside,) if name.startswith("Rwkv") else (flipped, inside):
        with torch.no_grad():
            hf, ours = hf_outputs(original, changed), local_outputs(local, changed)
            assert_equal(ours, hf, changed, name)


def test_every_family_has_a_language_model_among_those():
    tested = {getattr(transformers, name).config_class.model_type for name in LANGUAGE_MODELS}
    assert tested == {*FAMILIES}


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_defaults_are_those_of_the_classes(family):
    """An option that a config.json leaves out is what the class of `transformers` takes."""
    checked = 0
    default = transformers.CONFIG_MAPPING[family.model_type]().to_dict()
    if family.model_type == "deepseek_v2":
        default["num_experts_per_tok"] = 3  # without it their router cannot choose
    for architecture in family.architectures:
        whole = read_spec(family, architecture, default, ())
        for name in default.keys() - {"model_type"}:
            less = {key: value for key, value in default.items() if key != name}
            try:
                spec = read_spec(family, architecture, less, ())
            except CheckpointError as error:
                if f'"{name}" is missing, which {family.model_type} needs' not in str(error):
                    raise
            else:
                assert spec == whole, (architecture, name)
                checked += 1
    assert checked > 10


def test_a_null_in_a_config_is_what_the_class_takes_for_one():
    # A null is what the class takes for one, which is not its default.
    mistral = {**transformers.MistralConfig().to_dict(), "num_key_value_heads": None}
    attention = read_spec(FAMILIES["mistral"], "MistralModel", mistral, ()).decoder.mixers[0]
    assert attention.kv_heads == attention.num_heads


@pytest.mark.parametrize(
    "case",
    [
        Case(f"{family}ForCausalLM", changes)
        for family in ("Mixtral", "Qwen2Moe", "Qwen3Moe", "GptOss")
        for changes in VARIANTS[f"{family}ForCausalLM"]
    ],
    ids=case_id,
)
def test_the_auxiliary_loss(case):
    """Of all tokens, and of those that are not padding; layers without experts have none."""
    original, inputs = hf_model(case), inputs_of(case)
    local, coefficient = ours_of(original), original.config.router_aux_loss_coef
    for some in (inputs, {"input_ids": inputs["input_ids"]}):
        expected = coefficient * original(**some, output_router_logits=True).aux_loss
        _, loss = local.read(**some)
        torch.testing.assert_close(loss, expected, rtol=1e-9, atol=0.0)


@pytest.mark.parametrize(
    ("family", "expert"),
    [
        ("Mixtral", "block_sparse_moe.experts.4.w1"),
        ("DeepseekV2", "mlp.experts.4.gate_proj"),
        ("DeepseekV3", "mlp.experts.4.gate_proj"),
        ("Qwen2Moe", "mlp.experts.4.gate_proj"),
        ("Qwen3Moe", "mlp.experts.4.gate_proj"),
    ],
)
def test_experts_one_by_one_and_in_one_tensor(family, expert, tmp_path):
    """As published files have them, and as `transformers` 5 has them in memory."""
    original = hf_model(Case(f"{family}ForCausalLM", {}))
    for name, by_name in (("files", True), ("memory", False)):
        original.save_pretrained(tmp_path / name, save_original_format=by_name)
        tensors = load_file(tmp_path / name / "model.safetensors")
        assert (f"model.layers.1.{expert}.weight" in tensors) == by_name
        again = from_hugging_face(options_of(original), tensors).state_dict()
        for key, weight in ours_of(original).state_dict().items():
            assert torch.equal(again[key], weight), (name, key)


@pytest.mark.parametrize("name", ["Qwen2MoeForCausalLM", "Qwen3MoeForCausalLM"])
def test_a_model_of_experts_without_any_is_written_by_its_family(name):
    """All of its layers are dense, and only the activation of the experts is in use."""
    case = Case(name, {"mlp_only_layers": [0, 1, 2], "hidden_act": "gelu"})
    original, inputs = hf_model(case), inputs_of(case)
    options, tensors = to_hugging_face(ours_of(original), original.config.model_type)
    assert options["architectures"] == [name]
    assert options["mlp_only_layers"] == [0, 1, 2]
    again = reloaded(type(original), original, options, tensors)
    with torch.no_grad():
        assert_equal(hf_outputs(again, inputs), hf_outputs(original, inputs), inputs)


def test_limits_of_the_step_sizes_of_mamba_2_in_generation():
    """Generated tokens have the limits that the same tokens have in a prompt, and that is said."""
    case = Case("Mamba2ForCausalLM", {"time_step_limit": [0.2, 0.7]})
    original, ids = hf_model(case), inputs_of(case)["input_ids"][:1]
    with pytest.warns(UserWarning, match=r'"time_step_limit" is \[0.2, 0.7\]'):
        local = ours_of(original)
    cache = local.new_cache(1, ids.shape[1])
    with torch.no_grad():
        expected = original(ids).logits
        parts = [local(ids[:, i : i + 1], cache=cache) for i in range(ids.shape[1])]
        found = local.logits(torch.cat(parts, 1))
    assert (found - expected).abs().max() < 1e-9 * expected.abs().max()


def test_gpt_oss_in_mxfp4(tmp_path):
    """A folder with packed experts, as the models are published, against `transformers`."""
    sizes = {"hidden_size": 64, "intermediate_size": 32, "num_attention_heads": 4}
    original = hf_model(Case("GptOssForCausalLM", {**sizes, "num_hidden_layers": 2}))
    original.float().save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    generator = torch.Generator().manual_seed(0)
    for name in [name for name in tensors if name.endswith("_proj")]:
        experts, wide, out = tensors.pop(name).shape
        shape = experts, out, wide // 32
        for part, size, high in (("blocks", (*shape, 16), 256), ("scales", shape, 9)):
            numbers = torch.randint(high, size, generator=generator) + 118 * (part == "scales")
            tensors[f"{name}_{part}"] = numbers.to(torch.uint8)
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((tmp_path / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, dtype=torch.float32, experts_implementation="eager"
    )
    lm = trivium.load(tmp_path)
    weights = open_model(tmp_path).weights
    for name, weight in lm.module.state_dict().items():
        assert torch.equal(weights[name], weight), name
    own, other = lm.module.double(), ours_of(theirs.double()).state_dict()
    for name, weight in own.state_dict().items():
        assert torch.equal(weight, other[name]), name
    lm.save_hf(tmp_path / "unpacked")
    assert "quantization_config" not in (tmp_path / "unpacked" / "config.json").read_text()


def test_deepseek_as_it_was_published():
    """Without a module that predicts a second token, and with all layers dense."""
    original = hf_model(Case("DeepseekV3ForCausalLM", {}))
    tensors = {**original.state_dict(), "model.layers.61.eh_proj.weight": torch.ones(24, 48)}
    local = from_hugging_face(options_of(original), tensors)
    assert local.spec == ours_of(original).spec
    assert torch.equal(
        local.decoder.layers[1].feed_forward.correction,
        original.model.layers[1].mlp.gate.e_score_correction_bias,
    )
    case = Case("DeepseekV3ForCausalLM", {"first_k_dense_replace": 3})
    original, inputs = hf_model(case), inputs_of(case)
    with torch.no_grad():
        ours = local_outputs(ours_of(original), inputs)
        assert_equal(ours, hf_outputs(original, inputs), inputs)


@pytest.mark.parametrize(
    "name",
    [
        name
        for family in FAMILIES.values()
        for name in family.architectures
        if name.endswith("MultipleChoice")
    ],
)
def test_multiple_choice_is_a_classifier_of_one_label(name):
    case = Case(name, {})
    original, inputs = hf_model(case), inputs_of(case)
    local = ours_of(original)
    with torch.no_grad():
        scores = original(**{n: t[None] for n, t in inputs.items()}).logits[0]
        [mine] = local_outputs(local, inputs)
    assert (mine[:, 0] - scores).abs().max() < 1e-9 * scores.abs().max()
    options, _ = to_hugging_face(local)
    assert options["architectures"][0].endswith("SequenceClassification")


def test_heads_beside_those_of_the_class():
    """As `bert-base-uncased`: a masked LM by its config, with pooler and NSP in the file."""
    case = Case("BertForPreTraining", {})
    original = hf_model(case)
    options = {**options_of(original), "architectures": ["BertForMaskedLM"]}
    local = from_hugging_face(options, original.state_dict())
    assert [head.kind for head in local.spec.heads] == ["mlm", "nsp"]
    pooled = {f"bert.{n}": t for n, t in hf_model(Case("BertModel", {})).state_dict().items()}
    masked = hf_model(Case("BertForMaskedLM", {}))
    tensors = {**masked.state_dict(), **{n: t for n, t in pooled.items() if "pooler" in n}}
    local = from_hugging_face(options_of(masked), tensors)
    assert [head.kind for head in local.spec.heads] == ["mlm", "pooler"]
    _, written = to_hugging_face(local)
    assert torch.equal(written["bert.pooler.dense.weight"], tensors["bert.pooler.dense.weight"])


@pytest.mark.parametrize("name", ["BertModel", "GPT2Model", "LlamaModel", "T5Model", "BartModel"])
def test_bodies_alone_and_configs_that_say_less(name):
    """A file without the base prefix, a config without family or without class."""
    original = hf_model(Case(name, {}))
    options = options_of(original)
    expected = from_hugging_face(options, original.state_dict()).spec
    without_family = {**options, "model_type": None}
    without_class = {n: v for n, v in options.items() if n != "architectures"}
    # Without a class, tied LM heads are assumed: they have no weights that could be missing.
    for less in (without_family, *([without_class] if name[:4] in ("Bert", "Llam") else [])):
        assert from_hugging_face(less, original.state_dict()).spec == expected


def test_rope_as_transformers_4_wrote_it():
    scalings = [None, {"type": "linear", "factor": 3.0}]
    scalings.append({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0})
    scalings[2] |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 16}
    for scaling in scalings:
        old = {"rope_theta": 100.0, "rope_scaling": scaling}
        case = Case("LlamaForCausalLM", old)
        original, inputs = hf_model(case), inputs_of(case)
        options = {n: v for n, v in options_of(original).items() if n != "rope_parameters"}
        local = from_hugging_face({**options, **old}, original.state_dict()).eval()
        with torch.no_grad():
            assert_equal(local_outputs(local, inputs), hf_outputs(original, inputs), inputs)
        written, _ = to_hugging_face(local)
        assert written["rope_theta"] == written["rope_parameters"]["rope_theta"] == 100.0
        factors = [(one or {}).get("factor") for one in (scaling, written.get("rope_scaling"))]
        assert factors[0] == factors[1]
        assert local.spec == ours_of(original).spec


# Kinds whose frequencies depend on the length of a row, for texts longer than 8 tokens.
LENGTH_ROPES = [
    ({"rope_type": "dynamic", "factor": 3.0}, 8),
    (
        {
            "rope_type": "longrope",
            "short_factor": [1.0, 1.1, 1.3, 2.0],
            "long_factor": [1.0, 1.5, 4.0, 8.0],
            "original_max_position_embeddings": 8,
        },
        32,
    ),
]
LENGTH_ROPES.append(({**LENGTH_ROPES[1][0], "factor": 2.0, "attention_factor": 0.7}, 32))


@pytest.mark.parametrize("family", ["Llama", "Mistral", "Mixtral", "Qwen2", "Qwen3"])
def test_rope_that_depends_on_the_length(family):
    """Of every row its own length, as `transformers` computes for one row at a time."""
    for scaling, longest in LENGTH_ROPES:
        rope = {"rope_parameters": {**scaling, "rope_theta": 100.0}}
        case = Case(f"{family}ForCausalLM", {**rope, "max_position_embeddings": longest})
        case.changes["head_dim"] = 8  # of no head_dim their code makes no frequencies
        original, inputs = hf_model(case), inputs_of(case)
        local = ours_of(original)
        options, tensors = to_hugging_face(local)
        again = reloaded(type(original), original, options, tensors)
        with torch.no_grad():
            [rows] = local_outputs(local, inputs)
            for row, length in enumerate((13, 7, 2)):
                ids = inputs["input_ids"][row : row + 1, :length]
                for theirs in (original, again):
                    expected = theirs(ids).logits[0]
                    difference = (rows[row, :length] - expected).abs().max()
                    assert difference < 1e-5 * expected.abs().max(), (case, length)
        old = {"rope_scaling": scaling, "rope_theta": 100.0}
        earlier = {n: v for n, v in options_of(original).items() if n != "rope_parameters"}
        assert from_hugging_face({**earlier, **old}, original.state_dict()).spec == local.spec


def test_rotary_positions_of_gemma_3_in_both_spellings():
    """One base and scaling for each type of layer, or the options of before transformers 5."""
    scaling = {"rope_type": "linear", "factor": 8.0}
    full = {"rope_theta": 300.0, **scaling}
    local = {"rope_theta": 100.0, "rope_type": "default"}
    rope = {"rope_parameters": {"full_attention": full, "sliding_attention": local}}
    original = hf_model(Case("Gemma3ForCausalLM", rope))
    earlier = {n: v for n, v in options_of(original).items() if n not in (*rope, "layer_types")}
    earlier |= {"rope_theta": 300.0, "rope_local_base_freq": 100.0, "rope_scaling": scaling}
    local_model = from_hugging_face({**earlier, "sliding_window_pattern": 2}, original.state_dict())
    assert local_model.spec == ours_of(original).spec
    written, _ = to_hugging_face(local_model)
    assert written.items() >= {**rope, "rope_scaling": scaling, "rope_theta": 300.0}.items()
    assert written["rope_local_base_freq"] == 100.0


NOMIC_NAMES = {
    "layers.": "encoder.layers.",
    "embeddings.LayerNorm": "emb_ln",
    "self_attn.o_proj": "attn.out_proj",
    "post_attention_layernorm": "norm1",
    "post_mlp_layernorm": "norm2",
    "up_proj": "fc11",
    "gate_proj": "fc12",
    "down_proj": "fc2",
}
NOMIC_OPTIONS = {
    "n_embd": 24,
    "n_head": 2,
    "n_inner": 29,
    "n_layer": 2,
    "n_positions": 8192,
    "vocab_size": 43,
    "type_vocab_size": 3,
    "layer_norm_epsilon": 1e-12,
    "activation_function": "swiglu",
    "rotary_emb_base": 1000,
    "rotary_emb_fraction": 1.0,
    "rotary_emb_interleaved": False,
    "rotary_emb_scale_base": None,
    "resid_pdrop": 0.1,
    "attn_pdrop": 0.0,
    "max_trained_positions": 6,
    **dict.fromkeys(("qkv_proj_bias", "mlp_fc1_bias", "prenorm", "use_rms_norm"), False),
    "architectures": ["NomicBertModel"],
    "model_type": "nomic_bert",
}


@pytest.mark.parametrize("factor", [None, 2.0])
def test_nomic_bert_as_it_was_published(factor):
    """Under other names, and with dynamic scaling beyond the length that it was trained on."""
    rope = {"rope_type": "dynamic", "factor": factor} if factor else {"rope_type": "default"}
    rope |= {"rope_theta": 1000.0}
    case = Case("NomicBertModel", {"rope_parameters": rope, "max_position_embeddings": 6})
    original, inputs = hf_model(case), inputs_of(case)
    tensors = {}
    for name, tensor in original.state_dict().items():
        for new, old in NOMIC_NAMES.items():
            name = name.replace(new, old)
        tensors[name] = tensor
    for i in range(2):
        names = [f"encoder.layers.{i}.self_attn.{part}_proj.weight" for part in "qkv"]
        tensors[f"encoder.layers.{i}.attn.Wqkv.weight"] = torch.cat([*map(tensors.pop, names)])
    tensors = {name: tensor for name, tensor in tensors.items() if "pooler" not in name}
    options = {**NOMIC_OPTIONS, "rotary_scaling_factor": factor}
    local = from_hugging_face(options, tensors).eval()
    assert local.spec.encoder.dropout == 0.1
    row = {name: each[:1] for name, each in inputs.items()}
    with torch.no_grad():
        expected = original(**row).last_hidden_state
        assert (local(**row) - expected).abs().max() < 1e-9 * expected.abs().max()
    with pytest.raises(CheckpointError, match='"qkv_proj_bias" is True, which is not supported'):
        from_hugging_face({**options, "qkv_proj_bias": True}, tensors)


def test_the_decoder_of_modernbert_as_it_was_published():
    """With options of the code that trained it, and a window under another name."""
    original = hf_model(Case("ModernBertDecoderForCausalLM", {"local_attention": 128}))
    current = ("rope_parameters", "local_attention", "layer_types")
    options = {n: v for n, v in options_of(original).items() if n not in current}
    options |= {"global_rope_theta": 160000.0, "local_rope_theta": 160000.0, "sliding_window": 64}
    options |= {"causal_mask": True, "is_causal": True, "masked_prediction": False}
    options |= {"global_attn_every_n_layers": 3, "classifier_pooling": "mean"}
    options |= {"position_embedding_type": "sans_pos", "deterministic_flash_attn": False}
    spec = from_hugging_face(options, original.state_dict()).spec
    windows = [mixer.pattern and mixer.pattern.window for mixer in spec.decoder.mixers]
    assert windows == [None, 63, 63, None]
    assert {mixer.positions.base for mixer in spec.decoder.mixers} == {160000.0}


def test_rope_of_layer_types_with_lengths_of_their_own():
    """Each type has its own original length; `transformers` does not read a "truncate" there."""
    kinds = ("full_attention", "sliding_attention")
    factors = {"short_factor": [1.0, 1.1, 1.3, 2.0], "long_factor": [1.0, 1.5, 4.0, 8.0]}
    longrope = {"rope_type": "longrope", "rope_theta": 100.0, "factor": 2.0, **factors}
    first, second = ({**longrope, "original_max_position_embeddings": n} for n in (8, 16))
    dynamic = {"rope_type": "dynamic", "rope_theta": 100.0, "factor": 3.0}
    sizes = {"hidden_size": 16, "max_position_embeddings": 8}
    for ropes in ((first, second), (dynamic, second), (first, dynamic)):
        rope = {"rope_parameters": dict(zip(kinds, ropes, strict=True))}
        case = Case("ModernBertDecoderForCausalLM", {**sizes, **rope})
        original, inputs = hf_model(case), inputs_of(case)
        local, row = ours_of(original), {name: each[:1] for name, each in inputs.items()}
        again = reloaded(type(original), original, *to_hugging_face(local))
        with torch.no_grad():
            for theirs in (original, again):
                assert_equal(local_outputs(local, row), hf_outputs(theirs, row), row)
    yarn = {"rope_type": "yarn", "factor": 3.0, "original_max_position_embeddings": 4}
    rope = {"rope_parameters": {kind: {**yarn, "truncate": False} for kind in kinds}}
    case = Case("ModernBertDecoderForCausalLM", rope)
    original, inputs = hf_model(case), inputs_of(case)
    with pytest.warns(UserWarning, match='"truncate" in the RoPE options for'):
        local = ours_of(original)
    with torch.no_grad():
        assert_equal(local_outputs(local, inputs), hf_outputs(original, inputs), inputs)


@pytest.mark.parametrize("name", ["LlamaForCausalLM", "Gemma3ForCausalLM"])
def test_a_base_in_rope_parameters_is_read_before_one_beside_them(name):
    case = Case(name, {})
    options, inputs = {**options_of(hf_model(case)), "rope_theta": 77.0}, inputs_of(case)
    original = hf_model(Case(name, {n: v for n, v in options.items() if n != "model_type"}))
    local = from_hugging_face(options, original.state_dict()).eval()
    with torch.no_grad():
        assert_equal(local_outputs(local, inputs), hf_outputs(original, inputs), inputs)


def test_positions_that_do_not_follow_each_other():
    case = Case("LlamaForCausalLM", VARIANTS["LlamaForCausalLM"][3])
    original, inputs = hf_model(case), inputs_of(case)
    inputs["position_ids"] = torch.arange(5, 5 + 2 * 13, 2)[None].expand(3, -1)
    with torch.no_grad():
        outputs = local_outputs(ours_of(original), inputs)
        assert_equal(outputs, hf_outputs(original, inputs), inputs)


def test_t5_11_as_its_first_and_its_later_configs_say_it():
    """Not tied; or tied and not scaled, with a second matrix in the file all the same."""
    case = Case("T5ForConditionalGeneration", {"feed_forward_proj": "gated-gelu"})
    original = hf_model(case)
    tensors = {**original.state_dict(), "lm_head.weight": torch.randn(43, 22)}
    first = {**options_of(original), "tie_word_embeddings": False, "scale_decoder_outputs": None}
    later = {**options_of(original), "tie_word_embeddings": True, "scale_decoder_outputs": False}
    specs = [from_hugging_face(options, tensors).spec for options in (first, later)]
    assert specs[0] == specs[1]
    assert (specs[0].heads[0].tied, specs[0].heads[0].scale) == (False, 1.0)


def test_files_of_long_ago():
    """Buffers, copies of tied weights, one bias for two, a copy in place of the original."""
    bert = hf_model(Case("BertForMaskedLM", {"tie_word_embeddings": False}))
    tensors = dict(bert.state_dict())
    bias = tensors.pop("cls.predictions.decoder.bias")
    tensors["cls.predictions.bias"] = bias
    tensors["bert.embeddings.position_ids"] = torch.arange(31)
    assert torch.equal(from_hugging_face(options_of(bert), tensors).heads["mlm"].bias, bias)
    t5 = hf_model(Case("T5ForConditionalGeneration", {}))
    tensors = dict(t5.state_dict())
    del tensors["shared.weight"]
    local = from_hugging_face(options_of(t5), tensors)
    assert torch.equal(local.tokens.weight, t5.shared.weight)
    bart = hf_model(Case("BartForConditionalGeneration", {}))
    tensors = {**bart.state_dict(), "final_logits_bias": torch.zeros(1, 43)}
    from_hugging_face({**options_of(bart), "extra_pos_embeddings": 2}, tensors)


@pytest.mark.parametrize("name", ["BartForConditionalGeneration", "MarianMTModel"])
def test_a_bias_of_the_logits_that_is_not_zero(name):
    """The same logits here, in `transformers` after the way back, and the bias is trained here."""
    case = Case(name, {})
    original, inputs = hf_model(case), inputs_of(case)
    original.final_logits_bias = torch.linspace(-3.0, 5.0, 43)[None]
    local = ours_of(original)
    options, tensors = to_hugging_face(local)
    assert torch.equal(tensors["final_logits_bias"], original.final_logits_bias)
    again = reloaded(type(original), original, options, tensors)
    with torch.no_grad():
        for theirs in (original, again):
            assert_equal(local_outputs(local, inputs), hf_outputs(theirs, inputs), inputs, name)


@pytest.mark.parametrize("name", ["Deberta", "DebertaV2"])
def test_deberta_as_it_was_published(name):
    """Without a class, the masked head by its other name, and what no class of it reads."""
    original = hf_model(Case(f"{name}ForMaskedLM", {"legacy": False}))
    tensors = dict(original.state_dict())
    tensors["deberta.embeddings.position_embeddings.weight"] = torch.ones(31, 22)
    tensors["mask_predictions.dense.weight"] = torch.ones(22, 22)
    options = {
        n: o for n, o in options_of(original).items() if n not in ("legacy", "architectures")
    }
    local, inputs = from_hugging_face(options, tensors), inputs_of(Case(f"{name}Model", {}))
    with torch.no_grad():
        assert_equal(local_outputs(local.eval(), inputs), hf_outputs(original, inputs), inputs)


@pytest.mark.parametrize(
    "name",
    [
        *("BertForMaskedLM", "AlbertForMaskedLM", "ModernBertForMaskedLM", "GPT2LMHeadModel"),
        *("LlamaForCausalLM", "T5ForConditionalGeneration", "MarianMTModel"),
    ],
)
def test_equal_gradients(name):
    """Of the cross-entropy at real positions, for every weight, fused and transposed ones too."""
    case = Case(name, {})
    original, inputs = hf_model(case), inputs_of(case)
    local = ours_of(original)
    mask = inputs.get("decoder_attention_mask", inputs["attention_mask"]).bool()
    targets = torch.arange(int(mask.sum())) % 43
    [logits] = local_outputs(local, inputs)
    for output in (logits, original(**inputs).logits):
        torch.nn.functional.cross_entropy(output[mask], targets).backward()
    gradients = {n: weight.grad for n, weight in original.named_parameters()}
    weights = dict(local.named_parameters())
    shapes = {n: weight.shape for n, weight in weights.items()}
    # A key's bias has no gradient but rounding: softmax takes it away.
    least = 1e-6 * max(g.abs().max() for g in gradients.values() if g is not None)
    for weight in hf_weight_map(local.spec):
        if gradients.get(weight.hf) is None:  # a copy, or Marian's buffer of a bias
            continue
        for part, gradient in weight.split(gradients[weight.hf], shapes).items():
            error = (weights[part].grad - gradient).abs().max()
            assert error < tolerance(name) * max(gradient.abs().max(), least), (name, part)
