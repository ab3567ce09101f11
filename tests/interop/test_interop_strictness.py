"""What is not understood is an error that names it: options, weights, and specs on export."""

from __future__ import annotations

import re
import warnings
from dataclasses import replace

import pytest
import torch
import transformers
from hf_models import SIZES, Case, hf_model
from hugging_face import options_of, ours_of

from trivium import spec
from trivium.adapt import LoRA, add_lora
from trivium.errors import CheckpointError, SpecError
from trivium.interop.convert import from_hugging_face, is_expressible, to_hf_config, to_hugging_face
from trivium.interop.families import FAMILIES
from trivium.interop.hf_folder import export_problem
from trivium.interop.spec_config import read_spec, simplify
from trivium.models import build
from trivium.nn.activations import ACTIVATIONS
from trivium.presets import presets
from trivium.spec import Experts, TaggerHead
from trivium.train.model_config import ModelConfig

LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
# Class -> options that are refused, with what the message must say.
REFUSED = {
    "GPTNeoForCausalLM": [
        ({"window_size": 1}, '"window_size" is 1.*supported: 2 or more'),
        ({"attention_types": [[["far"], 2]]}, '"attention_types" is .*supported: "global" or'),
    ],
    "BertForMaskedLM": [
        ({"hidden_act": "sparkle"}, "\"hidden_act\" is 'sparkle'.*supported: 'gelu'"),
        ({"hidden_act": ["gelu"]}, '"hidden_act"'),
        ({"vocab_size": None}, '"vocab_size" is missing'),
        ({"hidden_size": "22"}, "\"hidden_size\" is '22'.*supported: a number"),
        ({"num_attention_heads": 3}, "a width of 22 is not a multiple of 3 heads"),
        ({"layer_norm_eps": -1.0}, "eps"),
        ({"position_embedding_type": "relative_key"}, '"position_embedding_type"'),
        ({"is_decoder": True}, '"is_decoder" is True'),
        ({"model_type": "colourful"}, "'colourful', which is not supported; supported: bart, bert"),
        ({"architectures": ["BertForPainting"]}, "'BertForPainting'.*supported: BertModel"),
        ({"vocab_size": 47}, r"word_embeddings.weight is \[43, 22\].*\[47, 22\]"),
        ({"num_hidden_layers": 3}, r"Missing: bert.encoder.layer.2.* more"),
        ({"num_hidden_layers": 1}, r"Not part of it: bert.encoder.layer.1.* more"),
    ],
    "BertForQuestionAnswering": [({"num_attention_heads": 0}, "22 is not a multiple of 0 heads")],
    "AlbertModel": [
        ({"inner_group_num": 2}, '"inner_group_num" is 2'),
        ({"num_hidden_groups": 2}, '"num_hidden_groups" is 2.*a divisor of num_hidden_layers'),
    ],
    "DebertaModel": [
        ({"talking_head": True}, '"talking_head"'),
        ({"relative_attention": False}, '"pos_att_type" is .*without relative_attention'),
    ],
    "DebertaV2Model": [
        ({"conv_kernel_size": 3}, '"conv_kernel_size"'),
        ({"norm_rel_ebd": "batch_norm"}, '"norm_rel_ebd"'),
        ({"embedding_size": 11}, '"embedding_size"'),
        ({"pos_att_type": ["p2p"]}, "p2p"),
    ],
    "LongformerModel": [
        ({"architectures": ["LongformerForMultipleChoice"]}, "'LongformerForMultipleChoice'")
    ],
    "ElectraModel": [({"summary_type": "last"}, '"summary_type"')],
    "ModernBertModel": [
        ({"layer_types": ["full_attention"]}, '"layer_types"'),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 2.0}}, '"rope_parameters"'),
        (
            {"rope_parameters": {"full_attention": {"rope_type": "linear"}}},
            '"factor" is missing for "rope_type" .linear',
        ),
    ],
    "OpenAIGPTLMHeadModel": [({"n_special": 5}, '"n_special"'), ({"afn": "mish"}, '"afn"')],
    "GPT2LMHeadModel": [
        ({"add_cross_attention": True}, '"add_cross_attention"'),
        ({"architectures": ["GPT2DoubleHeadsModel"]}, "'GPT2DoubleHeadsModel'"),
    ],
    "OPTForCausalLM": [
        ({"_remove_final_layer_norm": True}, '"_remove_final_layer_norm"'),
        ({"learned_embeddings": False}, '"learned_embeddings"'),
    ],
    "OPTModel": [({"word_embed_proj_dim": 17}, '"word_embed_proj_dim" is 17.*OPTForCausalLM')],
    "LlamaForCausalLM": [
        ({"rope_parameters": {"rope_type": "proportional"}}, '"rope_type" is .prop.*linear'),
        ({"rope_parameters": None, "rope_scaling": {"type": "su"}}, '"rope_type" is .su'),
        ({"rope_scaling": {"type": "longrope"}}, '"long_factor" is missing'),
        (
            {"rope_scaling": {"type": "longrope", "long_factor": [1.0], "short_factor": [1.0]}},
            "pair",
        ),
        ({"rope_scaling": {"type": "yarn", "original_max_position_embeddings": 0}}, "config.json"),
        ({"rope_parameters": {"rope_type": "linear"}}, '"factor" is missing'),
        ({"rope_scaling": {**LLAMA3, "beta_fast": 32}}, '"beta_fast" is not supported'),
        ({"partial_rotary_factor": 0.5}, '"partial_rotary_factor" is 0.5'),
        ({"rope_parameters": ["linear"]}, "config.json: "),
        ({"rope_interleaved": True}, '"rope_interleaved"'),
    ],
    "MistralForCausalLM": [
        ({"sliding_window": 1}, '"sliding_window" is 1.*2 or more'),
        ({"attention_bias": True}, '"attention_bias"'),
    ],
    "MixtralForCausalLM": [
        ({"router_jitter_noise": 0.1}, '"router_jitter_noise" is 0.1'),
        ({"num_experts_per_tok": 6}, "top_k=6 is more than num_experts=5"),
        ({"num_local_experts": 4}, r"\[5, 24\].*\[4, 24\]"),
        ({"num_experts": 7}, '"num_experts" is 7'),
    ],
    "Qwen2MoeForCausalLM": [
        ({"decoder_sparse_step": 0}, '"decoder_sparse_step" is 0.*1 or more'),
        ({"mlp_only_layers": "none"}, '"mlp_only_layers" is .none.*a list of layer indices'),
        ({"num_experts_per_tok": 6}, "top_k=6 is more than num_experts=5"),
        ({"num_experts": 4}, r"\[5, 24\].*\[4, 24\]"),
        (
            {"use_sliding_window": True, "sliding_window": None, "layer_types": None},
            '"sliding_window" is None.*2 or more',
        ),
    ],
    "Qwen3MoeForCausalLM": [
        ({"decoder_sparse_step": 0}, '"decoder_sparse_step" is 0.*1 or more'),
        ({"use_sliding_window": True, "sliding_window": 1}, '"sliding_window" is 1.*2 or more'),
    ],
    "GptOssForCausalLM": [
        ({"hidden_act": "gelu"}, '"hidden_act" is .gelu'),
        ({"num_experts": 7}, '"num_experts" is 7'),
        ({"sliding_window": None}, '"sliding_window" is None.*2 or more'),
        ({"swiglu_limit": 0.0}, "clamp: expected a number greater than 0"),
        ({"swiglu_alpha": 0.0}, '"swiglu_alpha" is 0.0.*a number above 0'),
    ],
    "DeepseekV2ForCausalLM": [
        ({"norm_topk_prob": True}, '"norm_topk_prob" is True'),
        ({"topk_method": "noaux_tc"}, "\"topk_method\" is 'noaux_tc'.*'greedy'"),
        ({"topk_method": "group_limited_greedy"}, '"n_group" is missing'),
        ({"scoring_func": "sigmoid"}, '"scoring_func" is .sigmoid'),
        ({"num_experts_per_tok": None}, '"num_experts_per_tok" is missing'),
        ({"num_key_value_heads": 3}, '"num_key_value_heads" is 3.*supported: 6'),
        ({"n_shared_experts": 0}, "shared"),
        ({"n_shared_experts": "2"}, "\"n_shared_experts\" is '2'.*supported: a number"),
        ({"num_experts": 7}, '"num_experts" is 7'),
        ({"first_k_dense_replace": 2}, r"layers.1.mlp.*Missing: model.layers.1.mlp"),
    ],
    "DeepseekV3ForCausalLM": [
        ({"attention_bias": True}, '"attention_bias" is True'),
        ({"scoring_func": "softmax"}, '"scoring_func" is .softmax'),
        ({"n_group": 4}, "num_experts=6 is not a multiple of num_groups=4"),
        ({"topk_group": 1}, "top_k=3 is more than the 2 experts"),
        ({"num_local_experts": 7}, '"num_local_experts" is 7'),
    ],
    "Gemma3ForCausalLM": [
        ({"model_type": "gemma3"}, "'gemma3', which is not supported.*gemma3_text"),
        ({"final_logit_softcapping": 30.0}, '"final_logit_softcapping" is 30.0'),
        ({"attn_logit_softcapping": 50.0}, '"attn_logit_softcapping" is 50.0'),
        ({"use_bidirectional_attention": True}, '"use_bidirectional_attention"'),
        ({"rope_parameters": {"rope_type": "linear", "factor": 8.0}}, '"rope_parameters" is'),
        (
            {"rope_parameters": {"sliding_attention": {"factor": 8.0}}},
            '"factor" is not supported for "rope_type" .default',
        ),
        ({"rope_parameters": {"full_attention": {"rope_type": "linear"}}}, '"factor" is missing'),
        ({"sliding_window": 1}, '"sliding_window" is 1.*2 or more'),
        ({"sliding_window_pattern": 0, "layer_types": None}, "config.json"),
    ],
    "GlmForCausalLM": [
        ({"rope_parameters": {"partial_rotary_factor": 0.4}}, "0.4 of it, 3, must be even"),
        ({"rope_parameters": {"rope_type": "linear"}}, '"factor" is missing'),
        ({"hidden_act": "sparkle"}, '"hidden_act" is'),
    ],
    "Olmo2ForCausalLM": [
        ({"rope_parameters": {"rope_type": "linear"}}, '"factor" is missing'),
        ({"hidden_act": "sparkle"}, '"hidden_act" is'),
        ({"partial_rotary_factor": 0.5}, '"partial_rotary_factor" is 0.5'),
    ],
    "Olmo3ForCausalLM": [
        ({"sliding_window": None}, '"sliding_window" is None.*2 or more'),
        ({"rope_parameters": {"rope_type": "linear", "factor": 8.0}}, '"rope_parameters" is'),
    ],
    "StableLmForCausalLM": [
        ({"rope_parameters": {"partial_rotary_factor": 0.4}}, "0.4 of it, 3, must be even"),
        ({"num_key_value_heads": 4}, "num_kv_heads"),
    ],
    "Starcoder2ForCausalLM": [
        ({"sliding_window": 1}, '"sliding_window" is 1.*2 or more'),
        ({"mlp_type": "gated"}, '"mlp_type" is .gated'),
    ],
    "FalconForCausalLM": [({"n_embed": 7}, '"n_embed" is 7')],
    "NemotronForCausalLM": [({"hidden_act": "sparkle"}, '"hidden_act" is')],
    "OlmoForCausalLM": [({"clip_qkv": -1.0}, "qkv_clip")],
    "PhiForCausalLM": [
        ({"rope_parameters": {"partial_rotary_factor": 0.0}}, "partial_rotary_factor")
    ],
    "T5ForConditionalGeneration": [
        ({"feed_forward_proj": "gated-mish"}, '"feed_forward_proj"'),
        ({"is_gated_act": True}, '"is_gated_act" is True'),
        ({"relative_attention_num_buckets": 11}, "num_buckets"),
    ],
    "BartForConditionalGeneration": [
        ({"normalize_before": True}, '"normalize_before"'),
        ({"extra_pos_embeddings": 0}, '"extra_pos_embeddings"'),
        ({"tie_word_embeddings": False}, '"tie_word_embeddings"'),
    ],
    "MarianMTModel": [
        ({"static_position_embeddings": False}, '"static_position_embeddings"'),
        ({"decoder_vocab_size": 47}, '"decoder_vocab_size" is 47'),
        ({"tie_word_embeddings": False}, '"tie_word_embeddings" is False'),
    ],
}


def test_options_that_change_the_numbers_are_refused():
    for name, refused in REFUSED.items():
        original = hf_model(Case(name, {}))
        for changes, message in refused:
            options = {**options_of(original), **changes}
            with pytest.raises(CheckpointError, match=message) as caught:
                from_hugging_face(options, original.state_dict())
            assert str(caught.value).count("config.json") <= 1


@pytest.mark.parametrize(
    ("name", "strange"),
    [
        ("BertForMaskedLM", {"colour": "blue", "head_dropout": 0.1, "loss_type": "ForMaskedLM"}),
        ("GPT2LMHeadModel", {"n_special": 0, "predict_special_tokens": True}),
        ("LongformerModel", {"attention_mode": "longformer", "ignore_attention_mask": False}),
        ("BartForConditionalGeneration", {"replacing_rate": 0}),
        ("LlamaForCausalLM", {"num_local_experts": 2, "sliding_window": 5}),
    ],
)
def test_keys_that_the_class_of_transformers_does_not_have_are_reported(name, strange):
    original = hf_model(Case(name, {}))
    with pytest.warns(UserWarning, match="not read, as if") as caught:
        local = from_hugging_face({**options_of(original), **strange}, original.state_dict())
    shown = ", ".join(f"{key} = {strange[key]!r}" for key in sorted(strange))
    [line] = [str(one.message) for one in caught if "not read" in str(one.message)]
    assert line == f"config.json: not read, as if without effect: {shown}."
    assert local.spec == ours_of(original).spec


@pytest.mark.parametrize("kind", FAMILIES)
def test_every_key_of_the_class_of_transformers_is_read_or_refused(kind):
    """Only a key that the class does not have may be passed over with a warning."""
    family, config = FAMILIES[kind], transformers.CONFIG_MAPPING[kind]
    options = {**config().to_dict(), "num_labels": family.num_labels}
    architecture = next(iter(family.architectures))
    for key in {*options, *config.attribute_map} - {"id2label", "label2id", "classifier_dropout"}:
        given = {**options, key: 987} if options.get(key) is None else options
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                read_spec(family, architecture, given, ())
            except CheckpointError:
                continue
        assert not [one for one in caught if f"{key} = 987" in str(one.message)], key


def test_second_names_are_refused_unless_allowed():
    original = hf_model(Case("GPT2LMHeadModel", {}))
    strange = {**options_of(original), "hidden_size": 29}
    with pytest.raises(CheckpointError, match="trivium import --allow-unknown-keys"):
        from_hugging_face(strange, original.state_dict())
    with pytest.warns(UserWarning, match="without effect: hidden_size = 29"):
        from_hugging_face(strange, original.state_dict(), allow_unknown_keys=True)


def test_a_config_without_a_type_is_of_the_family_of_its_tensors():
    bert = hf_model(Case("BertForMaskedLM", {}))
    options = {
        k: v for k, v in options_of(bert).items() if k not in ("model_type", "architectures")
    }
    assert from_hugging_face(options, bert.state_dict()).spec == ours_of(bert).spec
    llama = hf_model(Case("LlamaForCausalLM", {}))  # "model." is the prefix of many
    with pytest.raises(CheckpointError, match='"model_type" is None, which is not supported'):
        from_hugging_face(options, llama.state_dict())


# Without them, theirs follow from other options, as do those whose class has no default.
DERIVED = {"decoder_vocab_size", "head_dim", "layer_types", "num_decoder_layers", "d_head"}
DERIVED |= {"num_key_value_heads", "word_embed_proj_dim", "time_step_rank", "pooler_hidden_size"}


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_options_that_a_file_leaves_out_have_the_defaults_of_transformers(family):
    compared = set()
    architecture = next(iter(family.architectures))
    model = hf_model(Case(architecture, {}))
    options, weights = options_of(model), {*model.state_dict()}

    def outcome(options):
        try:
            return read_spec(family, architecture, options, weights)
        except CheckpointError as error:
            return str(error)

    for key, default in type(model.config)().to_dict().items():
        derived = key in DERIVED or getattr(type(model.config), key, default) is None
        if default is None or key not in options or derived:
            continue
        read = outcome({name: value for name, value in options.items() if name != key})
        if "is missing" not in str(read):
            assert read == outcome({**options, key: default}), (architecture, key)
            compared.add(key)
    assert len(compared) > 3


def test_weights_that_do_not_fit_are_named():
    original = hf_model(Case("BertForMaskedLM", {}))
    query = "bert.encoder.layer.1.attention.self.query.weight"
    matrix, norm = "cls.predictions.decoder.weight", "bert.embeddings.LayerNorm.bias"
    damaged = original.state_dict()[norm].clone()
    damaged[3] = float("nan")
    for change, message in {
        ("brush", torch.zeros(1)): "Not part of it: brush.",
        (query, None): f"Missing: {query}",
        (query, torch.zeros(22, 23)): rf"{query} is \[22, 23\].*\[22, 22\]",
        (matrix, torch.zeros(43, 22)): f"{matrix} differs from bert.embeddings.*tied",
        (norm, damaged): "embedding.norm.bias holds numbers that are not finite",
    }.items():
        name, tensor = change
        tensors = {**original.state_dict(), name: tensor}
        tensors = {n: t for n, t in tensors.items() if t is not None}
        with pytest.raises(CheckpointError, match=message):
            from_hugging_face(options_of(original), tensors)
    bart = hf_model(Case("BartForSequenceClassification", {}))
    tensors = {**bart.state_dict(), "final_logits_bias": torch.ones(1, 43)}
    with pytest.raises(CheckpointError, match="final_logits_bias is not 0 everywhere"):
        from_hugging_face(options_of(bart), tensors)


def test_two_undeclared_names_for_one_tensor_are_refused_on_export(monkeypatch):
    llama = ours_of(hf_model(Case("LlamaForCausalLM", {})))
    family = FAMILIES["llama"]
    norm = "model.layers.{i}.input_layernorm"
    twice = {**family.weights, "model.layers.{i}.norm_again": family.weights[norm]}
    copies = {f"model.layers.{i}.norm_again.weight": norm.format(i=i) + ".weight" for i in (0, 1)}
    monkeypatch.setitem(FAMILIES, "llama", replace(family, weights=twice))
    with pytest.raises(SpecError, match=r"llama has two names for .*norm_again.*tied_aliases"):
        to_hugging_face(llama)
    monkeypatch.setitem(FAMILIES, "llama", replace(family, weights=twice, tied_aliases=copies))
    _, tensors = to_hugging_face(llama)
    for again, first in copies.items():
        assert torch.equal(tensors[again], tensors[first])


def variations(model: spec.TransformerSpec) -> list[spec.TransformerSpec]:
    """The same model with one part changed, over the parts of a spec."""
    slot = "decoder" if model.decoder else "encoder"
    stack = getattr(model, slot)
    embedding, layer = model.embedding, stack.every_layer[0]
    network = layer.feed_forward
    attentions, networks = [], []
    for attention in stack.attentions[:1]:
        rotary = spec.Rotary(base=77.0) if attention.head_dim % 2 == 0 else None
        attentions = [
            {"bias": not attention.bias},
            {"output_bias": not attention.has_output_bias},
            {"key_bias": not attention.has_key_bias},
            {"num_kv_heads": 1},
            {"scale": 0.7},
            {"pattern": spec.Sliding(window=3)},
            *({"positions": positions} for positions in (spec.ALiBi(), rotary, None)),
        ]
        attentions = [
            attention.replace(**change)
            for change in attentions
            if attention.kind == "attention"
            or (attention.kind == "global-attention" and not change.get("positions"))
            or not {"positions", "pattern"} & change.keys()
        ]
    if isinstance(network, spec.MLP | Experts):
        forward = network.expert if isinstance(network, Experts) else network
        forwards = [
            {"gated": not forward.gated, "clamp": None, "up_offset": 0},
            {"bias": not forward.bias},
            {"activation": "relu"},
            {"activation": spec.Swish(beta=1.7)},
        ]
        networks = [forward.replace(**change) for change in forwards]
    if isinstance(network, Experts):
        networks = [*networks, *(network.replace(expert=each) for each in networks)]
        networks.append(network.replace(num_experts=4, top_k=3, aux_loss_coef=0.2))
        changes = [
            {"shared": network.expert},
            {"scores": "sigmoid"},
            {"normalized": False},
            {"scale": 2.5},
            {"corrected": True},
            {"num_groups": network.num_experts, "top_k_groups": network.top_k},
        ]
        networks += [network.replace(**change) for change in changes]
    norms = [spec.LayerNorm(eps=3e-3), spec.LayerNorm(bias=False)]
    norms += [spec.RMSNorm(), spec.RMSNorm(bias=True), spec.UnbiasedLayerNorm()]
    stacks = [
        *({"mixer": each} for each in attentions),
        *({"feed_forward": each} for each in networks),
        *({"norm": norm} for norm in norms),
        {"norm_placement": "pre" if layer.norm_placement == "post" else "post"},
        {"residual_multiplier": 0.5},
        {"first_norm": not stack.first_norm},
        {"final_norm": not stack.ends_with_norm},
        {"dropout": 0.3},
    ]
    embeddings = [
        {"positions": spec.Learned(max_length=37)},
        {"positions": spec.Sinusoidal(layout="halves", max_length=37)},
        {"positions": None},
        {"norm": None if embedding.norm else spec.LayerNorm()},
        {"scale": 3.0},
    ]
    if not embedding.query_stream:
        embeddings.append(
            {"factorised": None if embedding.factorised else spec.Factorised(width=17)}
        )
    heads = [
        (spec.LMHead(tied=True, bias=True),),
        (spec.LMHead(tied=False),),
        (spec.MLMHead(),),
        (spec.MLMHead(dense=spec.Dense(activation="silu", norm=True), tied=False),),
        (spec.ClassifierHead(num_labels=3, pooling="mean"),),
        (spec.TaggerHead(num_labels=3), spec.SpanHead()),
    ]
    return [
        *(model.replace(**{slot: stack.with_layers(**change)}) for change in stacks),
        *(model.replace(embedding=embedding.replace(**change)) for change in embeddings),
        *(model.replace(heads=each) for each in heads),
    ]


def test_a_spec_is_written_exactly_or_refused():
    """Whatever a family says it can express comes back the same, weights included."""
    expressed = refused = 0
    for prefix in SIZES:
        case = next(name for f in FAMILIES.values() for name in f.architectures if prefix in name)
        model = ours_of(hf_model(Case(case, {}))).spec
        for other in [model, *variations(model)]:
            try:
                to_hf_config(other)
            except SpecError:
                refused += 1
                continue
            expressed += 1
            built = build(other, seed=1)
            for name, bias in built.heads.named_parameters():
                if name == "lm.bias":  # one of zeros is none
                    torch.nn.init.ones_(bias)
            options, tensors = to_hugging_face(built)
            again = from_hugging_face(options, tensors)
            assert same(again.spec, other), (options["model_type"], other)
    assert (expressed > 60, refused > 200) == (True, True), (expressed, refused)


def same(one: spec.TransformerSpec, other: spec.TransformerSpec) -> bool:
    start = {"initialization": spec.Normal()}
    plain = [simplify(each).with_dropout(0.0).replace(**start) for each in (one, other)]
    return plain[0] == plain[1]


@pytest.mark.parametrize("scale", [0.3, 1.5])
@pytest.mark.parametrize("family", ["gemma2", "gemma3"])
def test_a_scale_that_is_not_written_as_an_integer_is_named(family, scale):
    gemma = presets[f"{family}-tiny"].replace(vocab_size=97)
    odd = gemma.decoder.map_layers(lambda one: one.replace(mixer=one.mixer.replace(scale=scale)))
    with pytest.raises(SpecError, match=rf"nearest is {family}.*mixer.scale = {scale}"):
        to_hugging_face(build(gemma.replace(decoder=odd)))


def test_what_no_family_expresses_is_named(monkeypatch):
    bert = presets["bert-tiny"].replace(vocab_size=97)
    forward = bert.encoder.every_layer[0].feed_forward
    changes = {
        "encoder.layers.feed_forward.gated = True": forward.replace(gated=True),
        "encoder.layers.feed_forward.activation": forward.replace(activation=spec.Swish(beta=1.7)),
    }
    for message, changed in changes.items():
        odd = bert.replace(encoder=bert.encoder.with_layers(feed_forward=changed))
        with pytest.raises(SpecError, match=rf"nearest is bert.*{message}"):
            to_hugging_face(build(odd))
    gpt = presets["gpt2-tiny"].replace(vocab_size=97)
    forward = gpt.decoder.every_layer[0].feed_forward.replace(activation=spec.Swish(beta=1.7))
    odd = gpt.replace(decoder=gpt.decoder.with_layers(feed_forward=forward))
    with pytest.raises(SpecError, match=r"decoder.layers.feed_forward.activation = Swish"):
        to_hf_config(odd)
    odd = gpt.replace(decoder=gpt.decoder.with_layers(norm=spec.RMSNorm()))
    with pytest.raises(SpecError, match=r"does not have: decoder.layers.norm.kind = 'rms'"):
        to_hf_config(odd)
    for name, message in (
        (
            "gpt3-tiny",
            r"gpt2, which does not have: decoder\.layers\.mixer that differs between layers\.",
        ),
        ("deberta-v3-tiny", r"deberta-v2 .* no head for replaced tokens.*: fine-tune it on a task"),
        ("jamba-mini", r"glm, which does not have: mixer = 'mamba'"),
    ):
        with pytest.raises(SpecError, match=message):
            to_hf_config(presets[name])
    with monkeypatch.context() as patch:  # a user's own function, which no class of theirs knows
        patch.setitem(ACTIVATIONS, "sparkle", torch.sin)
        forward = forward.replace(activation="sparkle")
        odd = gpt.replace(decoder=gpt.decoder.with_layers(feed_forward=forward))
        with pytest.raises(SpecError, match=r"decoder.layers.feed_forward.activation = 'sparkle'"):
            to_hugging_face(build(odd))
    llama = presets["llama-tiny"]
    forward = llama.decoder.every_layer[0].feed_forward.replace(activation=spec.Swish(beta=1.7))
    with pytest.raises(SpecError, match=r"nearest is llama, which does not have: .*activation"):
        to_hf_config(llama.replace(decoder=llama.decoder.with_layers(feed_forward=forward)))
    qwen3 = presets["qwen3-tiny"]
    attention = qwen3.decoder.mixers[0].replace(positions=spec.Rotary(layout="interleaved"))
    odd = qwen3.replace(decoder=qwen3.decoder.with_layers(mixer=attention))
    with pytest.raises(SpecError, match=r"positions.layout = 'interleaved'"):
        to_hf_config(odd)
    adapted = build(gpt)
    add_lora(adapted, LoRA(rank=2))
    with pytest.raises(SpecError, match=r"LoRA adapter .*merge the adapter first"):
        to_hugging_face(adapted)


SUMMARY = {
    "summary_activation": None,
    "summary_first_dropout": 0.1,
    "summary_proj_to_labels": True,
    "summary_type": "cls_index",
    "summary_use_proj": True,
}
# As they were published, leftovers of old releases included.
PUBLISHED = {
    "gpt1": {
        "afn": "gelu",
        "architectures": ["OpenAIGPTLMHeadModel"],
        "attn_pdrop": 0.1,
        "embd_pdrop": 0.1,
        "layer_norm_epsilon": 1e-05,
        "model_type": "openai-gpt",
        "n_ctx": 512,
        "n_embd": 768,
        "n_head": 12,
        "n_layer": 12,
        "n_positions": 512,
        "n_special": 0,
        "predict_special_tokens": True,
        "resid_pdrop": 0.1,
        **SUMMARY,
        "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}},
        "vocab_size": 40478,
    },
    "gpt2": {
        "_num_labels": 1,
        "activation_function": "gelu_new",
        "architectures": ["GPT2LMHeadModel"],
        "attn_pdrop": 0.1,
        "embd_pdrop": 0.1,
        "id2label": {"0": "LABEL_0"},
        "label2id": {"LABEL_0": 0},
        "layer_norm_epsilon": 1e-05,
        "model_type": "gpt2",
        "n_ctx": 1024,
        "n_embd": 768,
        "n_head": 12,
        "n_layer": 12,
        "n_positions": 1024,
        "output_past": True,
        "resid_pdrop": 0.1,
        **SUMMARY,
        "vocab_size": 50257,
    },
    "opt-350m": {
        "activation_dropout": 0.0,
        "activation_function": "relu",
        "architectures": ["OPTForCausalLM"],
        "attention_dropout": 0.0,
        "do_layer_norm_before": False,
        "dropout": 0.1,
        "ffn_dim": 4096,
        "hidden_size": 1024,
        "init_std": 0.02,
        "layerdrop": 0.0,
        "max_position_embeddings": 2048,
        "model_type": "opt",
        "num_attention_heads": 16,
        "num_hidden_layers": 24,
        "pad_token_id": 1,
        "prefix": "</s>",
        "torch_dtype": "float16",
        "vocab_size": 50272,
        "word_embed_proj_dim": 512,
    },
    "llama3.2-1b": {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "eos_token_id": [128001, 128008, 128009],
        "head_dim": 64,
        "hidden_act": "silu",
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "max_position_embeddings": 131072,
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": 32,
        "num_hidden_layers": 16,
        "num_key_value_heads": 8,
        "pretraining_tp": 1,
        "rms_norm_eps": 1e-05,
        "rope_scaling": {**LLAMA3, "factor": 32.0, "original_max_position_embeddings": 8192},
        "rope_theta": 500000.0,
        "tie_word_embeddings": True,
        "vocab_size": 128256,
    },
    "gemma3-1b": {
        "architectures": ["Gemma3ForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "attn_logit_softcapping": None,
        "cache_implementation": "hybrid",
        "final_logit_softcapping": None,
        "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size": 1152,
        "intermediate_size": 6912,
        "max_position_embeddings": 32768,
        "model_type": "gemma3_text",
        "num_attention_heads": 4,
        "num_hidden_layers": 26,
        "num_key_value_heads": 1,
        "query_pre_attn_scalar": 256,
        "rms_norm_eps": 1e-06,
        "rope_local_base_freq": 10000,
        "rope_scaling": None,
        "rope_theta": 1000000,
        "sliding_window": 512,
        "sliding_window_pattern": 6,
        "vocab_size": 262144,
    },
    "olmo2-7b": {
        "architectures": ["Olmo2ForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "hidden_act": "silu",
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "max_position_embeddings": 4096,
        "model_type": "olmo2",
        "num_attention_heads": 32,
        "num_hidden_layers": 32,
        "num_key_value_heads": 32,
        "rms_norm_eps": 1e-06,
        "rope_scaling": None,
        "rope_theta": 500000,
        "tie_word_embeddings": False,
        "vocab_size": 100352,
    },
    "mistral-7b": {
        "architectures": ["MistralForCausalLM"],
        "hidden_act": "silu",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "max_position_embeddings": 32768,
        "model_type": "mistral",
        "num_attention_heads": 32,
        "num_hidden_layers": 32,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-05,
        "rope_theta": 10000.0,
        "sliding_window": 4096,
        "tie_word_embeddings": False,
        "vocab_size": 32000,
    },
    "mixtral-8x7b": {
        "architectures": ["MixtralForCausalLM"],
        "attention_dropout": 0.0,
        "hidden_act": "silu",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "max_position_embeddings": 32768,
        "model_type": "mixtral",
        "num_attention_heads": 32,
        "num_experts_per_tok": 2,
        "num_hidden_layers": 32,
        "num_key_value_heads": 8,
        "num_local_experts": 8,
        "output_router_logits": False,
        "rms_norm_eps": 1e-05,
        "rope_theta": 1000000.0,
        "router_aux_loss_coef": 0.02,
        "sliding_window": None,
        "tie_word_embeddings": False,
        "vocab_size": 32000,
    },
    "deepseek-v2-lite": {
        "architectures": ["DeepseekV2ForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "auto_map": {"AutoConfig": "configuration_deepseek.DeepseekV2Config"},
        "aux_loss_alpha": 0.001,
        "first_k_dense_replace": 1,
        "hidden_act": "silu",
        "hidden_size": 2048,
        "intermediate_size": 10944,
        "kv_lora_rank": 512,
        "max_position_embeddings": 163840,
        "model_type": "deepseek_v2",
        "moe_intermediate_size": 1408,
        "moe_layer_freq": 1,
        "n_group": 1,
        "n_routed_experts": 64,
        "n_shared_experts": 2,
        "norm_topk_prob": False,
        "num_attention_heads": 16,
        "num_experts_per_tok": 6,
        "num_hidden_layers": 27,
        "num_key_value_heads": 16,
        "pretraining_tp": 1,
        "q_lora_rank": None,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "rms_norm_eps": 1e-06,
        "rope_scaling": {
            "beta_fast": 32,
            "beta_slow": 1,
            "factor": 40,
            "mscale": 0.707,
            "mscale_all_dim": 0.707,
            "original_max_position_embeddings": 4096,
            "type": "yarn",
        },
        "rope_theta": 10000,
        "routed_scaling_factor": 1.0,
        "scoring_func": "softmax",
        "seq_aux": True,
        "tie_word_embeddings": False,
        "topk_group": 1,
        "topk_method": "greedy",
        "v_head_dim": 128,
        "vocab_size": 102400,
    },
}


@pytest.mark.parametrize(("name", "options"), PUBLISHED.items(), ids=PUBLISHED)
def test_published_configs_are_read_whole(name, options):
    family = FAMILIES[options["model_type"]]
    read = read_spec(family, options["architectures"][0], options, ())
    assert same(read, presets[name])


EXPORTABLE = [n for n, spec in presets.items() if n.endswith("-tiny") and is_expressible(spec)]


SIZES_CHANGED = {
    "wider": lambda spec, slots: {"d_model": 2 * spec.d_model},
    "half as wide again": lambda spec, slots: {"d_model": 3 * spec.d_model // 2},
    "more layers": lambda spec, slots: {slot: {"num_layers": 3} for slot in slots},
    "more heads": lambda spec, slots: {
        slot: {"layers": {"mixer": {"num_heads": 2 * getattr(spec, slot).mixers[0].num_heads}}}
        for slot in slots
    },
}


@pytest.mark.parametrize("change", SIZES_CHANGED)
@pytest.mark.parametrize("preset", EXPORTABLE)
def test_a_preset_of_other_sizes_can_still_be_exported(preset, change):
    """What a family derives from width and heads is derived again."""
    spec = presets[preset]
    if change == "more heads" and not hasattr(spec.stacks[0].mixers[0], "num_heads"):
        pytest.skip("its mixers have no heads")
    slots = [slot for slot in ("encoder", "decoder") if getattr(spec, slot)]
    config = ModelConfig(preset=preset, **SIZES_CHANGED[change](spec, slots))
    changed = config.build_spec()
    assert changed != spec
    assert export_problem(changed) is None
    if change in ("wider", "half as wide again") and hasattr(spec.stacks[0].mixers[0], "num_heads"):
        assert config.derived_dimensions()


def test_sizes_that_are_set_are_not_derived():
    layers = {"mixer": {"head_dim": 8}, "feed_forward": {"d_ff": 100}}
    config = ModelConfig(preset="llama-tiny", d_model=256, decoder={"layers": layers})
    layer = config.build_spec().decoder.layers[0]
    assert (layer.mixer.head_dim, layer.feed_forward.d_ff) == (8, 100)
    assert config.derived_dimensions() == []
    config = ModelConfig(preset="t5-tiny", d_model=256)
    assert ("heads.scale", 128**-0.5, 256**-0.5) in config.derived_dimensions()


def test_a_head_that_no_class_has_is_named():
    spec = presets["bert-tiny"]
    spec = spec.replace(heads=(*spec.heads, TaggerHead(num_labels=2)))
    assert re.search("the heads mlm, .*tagger in one model", str(export_problem(spec)))
    assert export_problem(presets["lstm-tiny"]) == "only Transformers can be exported"
