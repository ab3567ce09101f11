"""GGUF files: llama.cpp computes the token ids, logits and greedy texts of the exported model."""

from __future__ import annotations

import copy
import json
import random
import re
import urllib.request
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
from hugging_face import ours_of, randomize
from torch.nn.functional import gelu

from trivium.adapt.adapter import Adapter, LowRankUpdate, with_adapter
from trivium.adapt.lora import LoRA, find_target_layers
from trivium.cli import main
from trivium.errors import CheckpointError, SpecError, TokenizerError
from trivium.interop.gguf_adapter import ADAPTER_FILE
from trivium.interop.gguf_families import ARCHITECTURES
from trivium.interop.gguf_file import GGUF_FILE
from trivium.interop.ollama import MODELFILE, to_go_template
from trivium.interop.settings import Settings
from trivium.language_model import LanguageModel
from trivium.nn.activations import ACTIVATIONS
from trivium.text import Tokenizer
from trivium.text.byte_level import PATTERNS
from trivium.text.chat_template import PLAIN_TEMPLATE, ChatTemplate
from trivium.text.trainers.byte_bpe import ByteBPE
from trivium.text.trainers.unigram import Unigram
from trivium.text.trainers.wordpiece import WordPiece

gguf = pytest.importorskip("gguf")
llama_cpp = pytest.importorskip("xllamacpp")
transformers = pytest.importorskip("transformers")

TEXTS = [
    "The quick brown fox jumps over the lazy dog. I'm here, you'll see: it's 1234 times!",
    "def f(x):\n    if x > 10:\n\t\treturn {'a': [x, 2.5e-3]}  # comment\n\n\nprint(f(7))\r\n",
    "你好\uff0c世界。这是一个测试\uff0c今天天气很好。２０２６年",
    "naïve café Straße ΑΒΓ абв עברית العربية हिन्दी ไทย 한국어 日本語",
    "😀👩‍👩‍👧 🇩🇪 e\u0301 \u00a0\u200b\u3000 ½ ² Ⅷ ǅ",
    " leading,  two   three    spaces and a trailing one ",
]
PIECES = [
    " ",
    "  ",
    "\n",
    "\r\n",
    "\t",
    "'s",
    "'LL",
    "a",
    "Word",
    " x1",
    "42",
    "1234567",
    "é",
    "。",
]
PIECES += [
    "你好",
    "😀",
    "\u200d",
    "\u0301",
    "...",
    "->",
    "<|end",
    "\u00a0",
    "\u3000",
    "ß",
    "Д",
    "²",
]
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] "
    "+ '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 97,
}
GPT2 = {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 97}
ROPE = {"rope_theta": 500.0, "factor": 4.0, "original_max_position_embeddings": 24}
LLAMA3 = {**ROPE, "rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}
NEOX = {name: value for name, value in LLAMA.items() if name != "num_key_value_heads"}
GEMMA = {"head_dim": 32, "query_pre_attn_scalar": 32}
DEEPSEEK = {
    **LLAMA,
    "num_hidden_layers": 3,
    "num_key_value_heads": 4,
    "first_k_dense_replace": 1,
    "q_lora_rank": 32,
    "kv_lora_rank": 24,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "moe_intermediate_size": 40,
    "n_routed_experts": 6,
    "n_shared_experts": 2,
    "num_experts_per_tok": 3,
    "routed_scaling_factor": 1.7,
}
DEEPSEEK_V3 = {**DEEPSEEK, "n_routed_experts": 8, "n_group": 4, "topk_group": 2}
YARN = {**ROPE, "rope_type": "yarn"}
LINEAR = {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", LLAMA),
    "llama-biases": ("Llama", {**LLAMA, "attention_bias": True, "mlp_bias": True, "head_dim": 24}),
    "llama-tied": ("Llama", {**LLAMA, "tie_word_embeddings": True}),
    "llama-llama3": ("Llama", {**LLAMA, "rope_parameters": LLAMA3}),
    "mistral": ("Mistral", {**LLAMA, "sliding_window": 60}),
    "qwen2": ("Qwen2", LLAMA),
    "qwen2-linear": ("Qwen2", {**LLAMA, "rope_parameters": LINEAR}),
    "qwen3": ("Qwen3", {**LLAMA, "head_dim": 32}),
    "qwen3-yarn": ("Qwen3", {**LLAMA, "head_dim": 32, "rope_parameters": YARN}),
    "mixtral": ("Mixtral", {**LLAMA, "num_local_experts": 5}),
    "qwen3_moe": (
        "Qwen3Moe",
        {
            **LLAMA,
            "head_dim": 32,
            "num_experts": 5,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "norm_topk_prob": True,
        },
    ),
    "olmo2": ("Olmo2", LLAMA),
    "gemma": ("Gemma", {**LLAMA, "head_dim": 32}),
    "granite": (
        "Granite",
        {
            **LLAMA,
            "embedding_multiplier": 3.0,
            "logits_scaling": 2.0,
            "residual_multiplier": 0.5,
            "attention_multiplier": 0.3,
        },
    ),
    "starcoder2": ("Starcoder2", {**LLAMA, "sliding_window": None}),
    "phi": ("Phi", {**LLAMA, "partial_rotary_factor": 0.5}),
    "phi3": ("Phi3", LLAMA),
    "stablelm": ("StableLm", {**LLAMA, "partial_rotary_factor": 0.5, "use_qkv_bias": True}),
    "gpt2": ("GPT2", GPT2),
    "gemma2": ("Gemma2", {**LLAMA, **GEMMA, "sliding_window": 11}),
    "gemma3": ("Gemma3Text", {**LLAMA, **GEMMA, "num_hidden_layers": 7, "sliding_window": 11}),
    "gemma3-period": (
        "Gemma3Text",
        {
            **LLAMA,
            **GEMMA,
            "num_hidden_layers": 3,
            "sliding_window": 5,
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "rope_theta": 700.0, "factor": 3.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
            },
        },
    ),
    "gpt_neox": ("GPTNeoX", {**NEOX, "hidden_act": "gelu", "rotary_pct": 0.5}),
    "gpt_neox-sequential": ("GPTNeoX", {**NEOX, "use_parallel_residual": False}),
    "gpt_neox-tied": ("GPTNeoX", {**NEOX, "tie_word_embeddings": True}),
    "olmo2-tied": ("Olmo2", {**LLAMA, "tie_word_embeddings": True}),
    "bloom": ("Bloom", {"hidden_size": 64, "n_layer": 2, "n_head": 4}),
    "bloom-heads": ("Bloom", {"hidden_size": 96, "n_layer": 2, "n_head": 6}),
    "mamba": ("Mamba", {"hidden_size": 64, "num_hidden_layers": 2, "state_size": 5}),
    "deepseek_v2": ("DeepseekV2", DEEPSEEK),
    "deepseek_v2-lite": ("DeepseekV2", {**DEEPSEEK, "q_lora_rank": None}),
    "deepseek_v2-27-layers": (
        "DeepseekV2",
        {**DEEPSEEK, "q_lora_rank": None, "num_hidden_layers": 27, "first_k_dense_replace": 26},
    ),
    "deepseek_v2-no-dense-layer": (
        "DeepseekV2",
        {**DEEPSEEK, "first_k_dense_replace": 0, "tie_word_embeddings": True},
    ),
    "deepseek_v2-yarn": (
        "DeepseekV2",
        {**DEEPSEEK, "rope_parameters": {**YARN, "mscale": 0.7, "mscale_all_dim": 0.7}},
    ),
    "deepseek_v2-yarn-1": (
        "DeepseekV2",
        {**DEEPSEEK, "rope_parameters": {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0}},
    ),
    "deepseek_v3": ("DeepseekV3", DEEPSEEK_V3),
    "deepseek_v3-all-groups": (
        "DeepseekV3",
        {**DEEPSEEK_V3, "topk_group": 4, "q_lora_rank": None, "tie_word_embeddings": True},
    ),
    "deepseek_v3-not-normalized": (
        "DeepseekV3",
        {**DEEPSEEK_V3, "norm_topk_prob": False, "n_group": 2, "topk_group": 1},
    ),
}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    specials = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
    return ByteBPE(vocab_size=500, special_tokens=specials).train(TEXTS * 3, progress=False)


def make_model(
    case: str, tokenizer: Tokenizer, *, headless: bool = False, **settings: Any
) -> LanguageModel:
    """A random model of `transformers` as ours; its embeddings have 5 rows without a token."""
    name, options = CASES[case]
    config_class = getattr(transformers, f"{name}Config")
    ids = {"bos_token_id": None, "eos_token_id": 0, "pad_token_id": None}
    config = config_class(vocab_size=tokenizer.vocab_size + 5, **options, **ids)
    suffix = "LMHeadModel" if name == "GPT2" else "ForCausalLM"
    full_name = f"{name}Model" if headless else name.removesuffix("Text") + suffix
    model_class = getattr(transformers, full_name)
    hf_model = randomize(model_class(config), 1, std=0.2)
    for buffer_name, buffer in hf_model.named_buffers():
        if buffer_name.endswith("e_score_correction_bias"):
            buffer.copy_(torch.arange(len(buffer)) % 3 / 5)
    module = ours_of(hf_model)
    kept = {"model_type": config.model_type, "max_position_embeddings": 97}
    return LanguageModel(module.spec, module, tokenizer, Settings(config=kept, **settings))


class LlamaCpp:
    """A server of llama.cpp in this process, with caches in float32."""

    def __init__(self, file: Path, *, embedding: bool = False, adapter: Path | None = None) -> None:
        params = llama_cpp.CommonParams()
        params.model.path = str(file)
        params.n_ctx, params.n_parallel, params.port = 90, 1, 0
        params.embedding = embedding
        params.warmup, params.cpuparams.n_threads, params.verbosity = False, 1, 0
        params.cache_type_k = params.cache_type_v = llama_cpp.ggml_type.GGML_TYPE_F32
        params.flash_attn_type = llama_cpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
        if adapter is not None:
            info = llama_cpp.CommonAdapterLoraInfo()
            info.path, info.scale = str(adapter), 1.0
            params.lora_adapters = [info]
        self.server = llama_cpp.Server(params)
        # Ending a server before its loop has run once would wait for this loop forever.
        if embedding:
            self.post("/embedding", content="a")
        else:
            self.post("/completion", prompt=[1], n_predict=1)

    def post(self, path: str, **body: Any) -> dict[str, Any]:
        request = urllib.request.Request(
            self.server.listening_address + path,
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)

    def encode(self, text: str, *, special: bool = False, adds_special: bool = False) -> list[int]:
        options = {"parse_special": special, "add_special": adds_special}
        return self.post("/tokenize", content=text, **options)["tokens"]

    def generate(self, ids: list[int], count: int, **options: Any) -> dict[str, Any]:
        fixed = {"temperature": 0, "cache_prompt": False, "return_tokens": True, "ignore_eos": True}
        return self.post("/completion", prompt=ids, n_predict=count, **fixed, **options)

    def log_probabilities(self, ids: list[int], vocab_size: int) -> torch.Tensor | None:
        """The log-probabilities [vocab_size] of the token after `ids`, if the server says them."""
        answer = self.generate(ids, 1, n_probs=vocab_size)
        for each in answer.get("completion_probabilities", ())[:1]:
            found = {one["id"]: one["logprob"] for one in each["top_logprobs"]}
            assert len(found) == vocab_size
            return torch.tensor([found[index] for index in range(vocab_size)])
        return None


def export(lm: LanguageModel, folder: Path, **options: Any) -> LlamaCpp:
    """Save a model and load it with llama.cpp."""
    lm.save_gguf(folder, **options)
    return LlamaCpp(folder / GGUF_FILE)


def with_pattern(tokenizer: Tokenizer, pattern: str) -> Tokenizer:
    """The same vocabulary with another pattern of the pre-tokenizer."""
    layout = json.loads(tokenizer.to_json())
    byte_level = layout["pre_tokenizer"] | {"use_regex": False}
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated"}
    steps = [split | {"invert": False}, byte_level]
    layout["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": steps}
    return Tokenizer(tokenizers.Tokenizer.from_str(json.dumps(layout)))


def random_texts(count: int) -> list[str]:
    """Texts of pieces at whose joints a pre-tokenizer may split in one way or another."""
    rng = random.Random(0)
    return ["".join(rng.choices(PIECES, k=rng.randint(1, 12))) for _ in range(count)]


def log_probabilities(lm: LanguageModel, ids: list[int]) -> torch.Tensor:
    """Our log-probabilities [vocab_size] of the token after `ids`."""
    with torch.no_grad():
        logits = lm.module.logits(lm.module(input_ids=torch.tensor([ids])))[0, -1]
    return logits.log_softmax(-1)


def tolerance_of(case: str) -> float:
    """The largest difference of log-probabilities.

    With GELU, a value between two numbers of float16 may be rounded to either of them: a relative
    change by 1e-6 before this rounding changes Gemma's log-probabilities by up to 3e-3.
    """
    with_gelu = ("gpt", "gemma", "starcoder2", "phi", "bloom")
    return 5e-3 if case.startswith(with_gelu) and case != "phi3" else 1e-4


def ggml_gelu(x: torch.Tensor) -> torch.Tensor:
    """GELU from a table of float16 values, as GGML computes it on a CPU for |x| < 10."""
    rounded = gelu(x.half().float(), approximate="tanh").half().float()
    return torch.where(x.abs() < 10.0, rounded, x.relu())


@pytest.mark.parametrize("case", CASES)
@pytest.mark.filterwarnings("ignore:llama.cpp has no sliding window")
def test_llama_cpp_computes_the_same_logits_and_greedy_texts(
    case: str, tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("gelu", "gelu_tanh"):
        monkeypatch.setitem(ACTIVATIONS, name, ggml_gelu)
    lm = make_model(case, tokenizer)
    server = export(lm, tmp_path / "out", weight_type="f32")
    generator = torch.Generator().manual_seed(3)
    tolerance = tolerance_of(case)
    compared = 0
    for length in (1, 3, 7, 13, 20, 29, 41):
        ids = torch.randint(3, tokenizer.vocab_size, (length,), generator=generator).tolist()
        # The server leaves out the probabilities if the first token is not valid UTF-8.
        if (theirs := server.log_probabilities(ids, lm.spec.vocab_size)) is not None:
            assert (log_probabilities(lm, ids) - theirs).abs().max() < tolerance
            compared += 1
    assert compared >= 2
    ids = tokenizer.encode_ids_batch(TEXTS[:1])[0][:20]
    text = list(ids)
    for _ in range(12):
        scores = log_probabilities(lm, text)
        scores[0] = -torch.inf  # the end token
        text.append(int(scores.argmax()))
    assert server.generate(ids, 12)["tokens"] == text[len(ids) :]


def with_random_adapter(lm: LanguageModel) -> LanguageModel:
    """The model with an adapter on all linear layers, whose ranks and factors differ."""
    generator = torch.Generator().manual_seed(5)
    updates = {}
    layers = find_target_layers(lm.module, LoRA(targets=("all-linear",)))
    # PEFT does not adapt routers, nor these matrices of Mamba.
    left_out = ("router", "dt_proj")
    model_type = lm.settings.config.get("model_type")
    if model_type == "mamba":
        left_out += ("output",)
    # llama.cpp does not adapt these matrices, and PEFT not both experts and other networks.
    if model_type in ("deepseek_v2", "deepseek_v3"):
        left_out += ("mixer.query", "query_down", "key_value_down", "key_value_up")
        layers = {name: each for name, each in layers.items() if ".experts." not in name}
    if model_type == "nomic_bert":
        left_out += ("mixer.query", "mixer.key", "mixer.value")
    layers = {name: each for name, each in layers.items() if not name.endswith(left_out)}
    for index, (name, layer) in enumerate(layers.items()):
        # The experts of a layer are adapted alike, because their matrices are stacked.
        kind = index % 2 if ".experts." not in name else 0
        a = torch.randn(3 + kind, layer.in_features, generator=generator)
        b = torch.randn(layer.out_features, 3 + kind, generator=generator)
        updates[name] = LowRankUpdate(a * 0.05, b * 0.1, scale=2.0 - kind)
    other = copy.copy(lm)
    other.adapter = Adapter("tuned", None, lm.spec, updates, {})
    other.module = with_adapter(lm.module, other.adapter)
    return other


@pytest.mark.parametrize("case", [case for case in CASES if "-" not in case])
@pytest.mark.filterwarnings("ignore:llama.cpp has no sliding window")
def test_an_adapter_is_added_to_the_file_of_the_base(
    case: str, tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("gelu", "gelu_tanh"):
        monkeypatch.setitem(ACTIVATIONS, name, ggml_gelu)
    base = make_model(case, tokenizer)
    lm = with_random_adapter(base)
    base.save_gguf(tmp_path / "base", weight_type="f32")
    lm.save_gguf_adapter(tmp_path / "tuned", weight_type="f32")
    server = LlamaCpp(tmp_path / "base" / GGUF_FILE, adapter=tmp_path / "tuned" / ADAPTER_FILE)
    compared = 0
    for ids in ([7, 31, 11, 5, 23], [99, 17, 3], [41]):
        if (theirs := server.log_probabilities(ids, lm.spec.vocab_size)) is not None:
            ours = log_probabilities(lm, ids)
            assert (ours - theirs).abs().max() < 2 * tolerance_of(case)
            assert (ours - log_probabilities(base, ids)).abs().max() > 0.1
            compared += 1
    assert compared


@pytest.mark.parametrize("case", ["qwen3", "gpt2", "bert", "nomic_bert"])
def test_an_adapter_for_embeddings_is_added_to_the_file_of_the_base(
    case: str, tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("gelu", "gelu_tanh"):
        monkeypatch.setitem(ACTIVATIONS, name, ggml_gelu)
    if case == "bert":
        base = make_bert(WordPiece(vocab_size=400).train(TEXTS[:1] * 3, progress=False))
    elif case == "nomic_bert":
        base = make_encoder("NomicBert", train_encoder_tokenizer(WordPiece), NOMIC_BERT)
    else:
        base = make_model(case, tokenizer, headless=True)
        base.settings = base.settings.with_task("contrastive", pooling="last")
    lm = with_random_adapter(base)
    base.save_gguf(tmp_path / "base", weight_type="f32")
    lm.save_gguf_adapter(tmp_path / "tuned", weight_type="f32")
    adapter = tmp_path / "tuned" / ADAPTER_FILE
    server = LlamaCpp(tmp_path / "base" / GGUF_FILE, embedding=True, adapter=adapter)
    for text in (TEXTS[0][:7], TEXTS[0][:50]):
        [theirs] = server.post("/embedding", content=text)
        vector = torch.tensor(theirs["embedding"][0])
        assert vector @ lm.embed(text) > 0.9999
        assert vector @ base.embed(text) < 0.999


@pytest.mark.parametrize(
    ("layer", "named"),
    [
        ("mixer.query", "q_b_proj"),
        ("query_down", "q_a_proj"),
        ("key_value_down", "kv_a_proj_with_mqa"),
        ("key_value_up", "kv_b_proj"),
    ],
)
def test_adapters_of_layers_that_llama_cpp_does_not_adapt_are_refused(
    layer: str, named: str, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    lm = make_model("deepseek_v2", tokenizer)
    weights = dict(lm.module.named_parameters())
    name = next(each.removesuffix(".weight") for each in weights if f"{layer}." in each)
    height, width = weights[f"{name}.weight"].shape
    update = LowRankUpdate(torch.ones(2, width), torch.ones(height, 2), scale=1.0)
    lm.adapter = Adapter("tuned", None, lm.spec, {name: update}, {})
    lm.module = with_adapter(lm.module, lm.adapter)
    with pytest.raises(SpecError, match=f"does not add LoRA to {named} in .*merged model"):
        lm.save_gguf_adapter(tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_adapters_that_llama_cpp_does_not_compute_are_refused(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    base = make_model("llama", tokenizer)
    with pytest.raises(SpecError, match="has no adapter"):
        base.save_gguf_adapter(tmp_path / "out")
    lm = with_random_adapter(base)
    assert lm.adapter is not None
    with pytest.raises(SpecError, match="f16, f32, bf16, not q4_0"):
        lm.save_gguf_adapter(tmp_path / "out", weight_type="q4_0")  # type: ignore[arg-type]
    updates = {
        name: replace(each, magnitude=torch.ones(len(each.lora_b)))
        for name, each in lm.adapter.updates.items()
    }
    dora = copy.copy(base)
    dora.adapter = replace(lm.adapter, updates=updates)
    dora.module = with_adapter(base.module, dora.adapter)
    with pytest.raises(SpecError, match="DoRA"):
        dora.save_gguf_adapter(tmp_path / "out")
    trained = {"tokens.weight": base.module.state_dict()["tokens.weight"] + 1.0}
    lm.adapter = replace(lm.adapter, weights=trained)
    with pytest.raises(SpecError, match=r"also replaces tokens\.weight"):
        lm.save_gguf_adapter(tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("pattern", ["trained", "gpt2", "llama3", "qwen"])
def test_llama_cpp_computes_the_same_token_ids(
    pattern: str, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    if pattern != "trained":
        tokenizer = with_pattern(tokenizer, PATTERNS[pattern])
    server = export(make_model("llama", tokenizer), tmp_path / "out")
    texts = [*TEXTS, *random_texts(1994)]
    for text, ids in zip(texts, tokenizer.encode_ids_batch(texts), strict=True):
        assert server.encode(text) == ids, text


# The largest error of a weight, relative to the largest weight. With 4 and 5 bits, the error is at
# most a step: 1/8 and 1/16 of the largest weight, or 1/15 and 1/31 of the range of 32 weights.
STEPS = {
    **{"f16": 2.0**-11, "bf16": 2.0**-8, "q8_0": 1 / 127},
    **{"q5_0": 1 / 16, "q5_1": 2 / 31, "q4_0": 1 / 8, "q4_1": 2 / 15},
}


@pytest.mark.parametrize("kind", STEPS)
def test_weights_are_those_of_the_model_within_the_precision_of_their_type(
    kind: Any, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    lm = make_model("qwen2", tokenizer)
    server = export(lm, tmp_path / "out", weight_type=kind)
    reader = gguf.GGUFReader(tmp_path / "out" / GGUF_FILE)
    tensors = {each.name: each for each in reader.tensors}
    weight = lm.module.state_dict()["decoder.layers.1.feed_forward.up.weight"].numpy()
    stored = tensors["blk.1.ffn_up.weight"]
    assert stored.tensor_type.name == kind.upper()
    assert tensors["blk.1.ffn_norm.weight"].tensor_type.name == "F32"
    values = gguf.dequantize(stored.data, stored.tensor_type).reshape(weight.shape)
    error = abs(values - weight).max()
    assert 0 < error <= STEPS[kind] * abs(weight).max()
    few_bits = kind[:2] in ("q4", "q5")
    assert tensors["output.weight"].tensor_type.name == ("Q8_0" if few_bits else kind.upper())
    assert len(server.generate([5, 6], 3)["tokens"]) == 3


@pytest.mark.parametrize("kind", ["q8_0", "q5_1", "q5_0", "q4_1", "q4_0"])
def test_llama_cpp_computes_with_the_quantized_weights(
    kind: Any, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    """llama.cpp's log-probabilities are those of a model whose weights were rounded to the type.

    They differ a little, because llama.cpp also rounds activations to 8 bits.
    """
    lm = make_model("llama", tokenizer)
    server = export(lm, tmp_path / "out", weight_type=kind)
    ids = [7, 31, 11, 5, 23]
    original = log_probabilities(lm, ids)
    with torch.no_grad():
        for name, weight in lm.module.named_parameters():
            if weight.ndim == 2:
                own = "q8_0" if name.startswith(("tokens.", "heads.")) else kind
                step = gguf.GGMLQuantizationType[own.upper()]
                values = gguf.dequantize(gguf.quantize(weight.numpy(), step), step)
                weight.copy_(torch.from_numpy(values))
    rounded = log_probabilities(lm, ids)
    theirs = server.log_probabilities(ids, lm.spec.vocab_size)
    assert theirs is not None
    assert (theirs - rounded).std() < 0.1
    if kind != "q8_0":
        assert (theirs - rounded).std() < (theirs - original).std() / 2


@pytest.mark.parametrize("kind", ["q8_0", "q4_0"])
def test_rows_that_are_no_multiple_of_32_are_written_as_f16(
    kind: Any, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    CASES["narrow"] = ("Llama", {**LLAMA, "intermediate_size": 90})
    lm = make_model("narrow", tokenizer)
    with pytest.warns(UserWarning, match=f"2 weights have rows .* written as f16, not {kind}"):
        lm.save_gguf(tmp_path / "out", weight_type=kind)
    tensors = gguf.GGUFReader(tmp_path / "out" / GGUF_FILE).tensors
    types = {each.name: each.tensor_type.name for each in tensors}
    assert types["blk.0.ffn_down.weight"] == "F16"
    assert types["blk.0.ffn_up.weight"] == kind.upper()


def test_values_beyond_f16_are_refused(tokenizer: Tokenizer, tmp_path: Path) -> None:
    lm = make_model("llama", tokenizer)
    with torch.no_grad():
        lm.module.state_dict()["tokens.weight"][7, 3] = 1e5
    with pytest.raises(SpecError, match=r"above 65504.*bf16"):
        lm.save_gguf(tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("template", [CHATML, PLAIN_TEMPLATE], ids=["chatml", "plain"])
def test_chats_have_the_same_prompt_and_end_tokens(
    template: str, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    ends = {"eos_token_id": [2, 0], "temperature": 0.5}
    lm = make_model("llama", tokenizer, chat_template=template, generation=ends)
    server = export(lm, tmp_path / "out")
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "What is  2 + 2?"},
        {"role": "assistant", "content": "It is 4."},
        {"role": "user", "content": "And\n3 + 3?"},
    ]
    chat = lm.get_chat_template()
    prompt = str(chat.render(messages, add_generation_prompt=True))
    assert server.post("/apply-template", messages=messages)["prompt"] == prompt
    assert server.encode(prompt, special=True) == lm.conversation_ids(messages)
    go_template = to_go_template(chat)
    assert go_template is not None
    assert render_go(go_template, messages) == prompt
    modelfile = (tmp_path / "out" / MODELFILE).read_text()
    assert f'TEMPLATE """{go_template}"""' in modelfile
    assert "FROM ./model.gguf\n" in modelfile
    assert 'PARAMETER stop "<|endoftext|>"\nPARAMETER stop "<|im_end|>"\n' in modelfile
    assert "PARAMETER temperature 0.5\n" in modelfile
    assert "PARAMETER num_ctx 97\n" in modelfile
    fields = gguf.GGUFReader(tmp_path / "out" / GGUF_FILE).fields
    named = {role: fields[f"tokenizer.ggml.{role}_token_id"].contents() for role in ("eos", "eot")}
    assert named == {"eos": 0, "eot": 2}


def render_go(template: str, messages: list[dict[str, str]]) -> str:
    """Evaluate the actions that our Go templates have: one loop with a branch for each role."""
    start, loop, end = re.split(r"{{ range .Messages }}|{{ end }}{{ end }}", template)
    branch = re.compile(r'{{ (?:else )?if eq .Role "(\w+)" }}(.*?)(?={{ else|\Z)', re.DOTALL)
    branches = branch.findall(loop)
    turns = {role: text.split("{{ .Content }}") for role, text in branches}
    return start + "".join(each["content"].join(turns[each["role"]]) for each in messages) + end


def test_a_chat_template_that_go_cannot_express_is_named(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    counted = "{% for m in messages %}{{ loop.index }}{{ m.content }}<|im_end|>{% endfor %}"
    assert to_go_template(ChatTemplate.of(counted, tokenizer)) is None
    lm = make_model("llama", tokenizer, chat_template=counted)
    with pytest.warns(UserWarning, match="write TEMPLATE in Modelfile by hand"):
        lm.save_gguf(tmp_path / "out")
    assert 'TEMPLATE """' not in (tmp_path / "out" / MODELFILE).read_text()


def test_suppressed_tokens_are_named(tokenizer: Tokenizer, tmp_path: Path) -> None:
    lm = make_model("llama", tokenizer, generation={"suppress_tokens": [7, 9]})
    with pytest.warns(UserWarning, match="2 tokens that this model never generates"):
        lm.save_gguf(tmp_path / "out")


def test_the_context_ends_where_a_sliding_window_would_begin(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    with pytest.warns(UserWarning, match="context length is 60"):
        make_model("mistral", tokenizer).save_gguf(tmp_path / "out")
    fields = gguf.GGUFReader(tmp_path / "out" / GGUF_FILE).fields
    assert fields["llama.context_length"].contents() == 60


@pytest.mark.parametrize(
    ("case", "changes", "named"),
    [
        ("llama", {"hidden_act": "gelu"}, "hidden_act = 'silu'"),
        (
            "llama",
            {"rope_parameters": {**ROPE, "rope_type": "yarn", "attention_factor": 1.3}},
            "yarn",
        ),
        ("gemma2", {"attn_logit_softcapping": None}, "only with attn_logit_softcapping"),
        ("gemma2", {"query_pre_attn_scalar": 16}, "query_pre_attn_scalar = 32"),
        (
            "gemma3",
            {"layer_types": ["full_attention", *["sliding_attention"] * 6]},
            "every nth layer has full attention",
        ),
        ("gpt_neox", {"attention_bias": False}, "attention_bias = True"),
        ("mamba", {"expand": 3}, "expand = 2"),
        (
            "deepseek_v2",
            {"topk_method": "group_limited_greedy", "n_group": 3, "topk_group": 2},
            "topk_method = 'greedy'",
        ),
        ("deepseek_v2", {"rms_norm_eps": 1e-3}, "rms_norm_eps = 1e-06"),
        ("deepseek_v3", {"rope_interleave": False}, "rope_interleave = True"),
        ("deepseek_v2", {"num_hidden_layers": 27}, "27 layers only with q_lora_rank = None"),
        ("deepseek_v2", {"rope_parameters": YARN}, "mscale = mscale_all_dim"),
        (
            "deepseek_v2",
            {"rope_parameters": {**YARN, "mscale": 1.0, "mscale_all_dim": 0.5}},
            "mscale = mscale_all_dim",
        ),
        ("deepseek_v2", {"rope_parameters": LINEAR}, "mscale = mscale_all_dim"),
    ],
)
def test_options_that_llama_cpp_does_not_compute_are_refused(
    case: str, changes: Mapping[str, Any], named: str, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    name, options = CASES[case]
    CASES["changed"] = (name, {**options, **changes})
    with pytest.raises(SpecError, match=named):
        make_model("changed", tokenizer).save_gguf(tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_encoder_decoder_is_refused_with_the_reason(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    config = transformers.T5Config(
        vocab_size=tokenizer.vocab_size, d_model=24, d_kv=8, d_ff=29, num_layers=2, num_heads=3
    )
    module = ours_of(randomize(transformers.T5ForConditionalGeneration(config), 1))
    lm = LanguageModel(module.spec, module, tokenizer)
    with pytest.raises(SpecError, match=r"llama_encode must be called first.*can be written"):
        lm.save_gguf(tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_other_families_are_refused_with_the_list_of_those_that_can_be_written(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    CASES["opt"] = ("OPT", {"hidden_size": 24, "num_attention_heads": 2, "ffn_dim": 29})
    with pytest.raises(SpecError, match=f'"opt" cannot.*{", ".join(ARCHITECTURES)}'):
        make_model("opt", tokenizer).save_gguf(tmp_path / "out")


@pytest.mark.parametrize("trainer", [WordPiece, Unigram])
def test_other_tokenizers_are_refused(trainer: Any, tokenizer: Tokenizer, tmp_path: Path) -> None:
    lm = make_model("llama", tokenizer)
    lm.tokenizer = trainer(vocab_size=400).train(TEXTS * 3, progress=False)
    with pytest.raises(
        TokenizerError, match=r"this \w+ tokenizer.*\. Tokenizers that can be"
    ) as error:
        lm.save_gguf(tmp_path / "out")
    assert ("zero-width joiner" in str(error.value)) == (trainer is Unigram)


def test_an_encoder_whose_texts_have_other_special_tokens_is_refused(tmp_path: Path) -> None:
    words = ByteBPE(vocab_size=400, special_tokens=("<|endoftext|>",)).train(TEXTS, progress=False)
    with pytest.raises(TokenizerError, match="cls and sep around the texts"):
        make_bert(words).save_gguf(tmp_path / "out")
    words = Unigram(vocab_size=400).train(TEXTS * 3, progress=False)
    with pytest.raises(TokenizerError, match="this unigram tokenizer: its Unigram"):
        make_bert(words).save_gguf(tmp_path / "out")


def test_an_unknown_pattern_is_refused(tokenizer: Tokenizer, tmp_path: Path) -> None:
    lm = make_model("llama", with_pattern(tokenizer, r"\w+|\W+"))
    with pytest.raises(TokenizerError, match="does not have the pattern"):
        lm.save_gguf(tmp_path / "out")


def test_a_folder_is_replaced_only_on_request(tokenizer: Tokenizer, tmp_path: Path) -> None:
    lm = make_model("gpt2", tokenizer)
    lm.save_gguf(tmp_path / "out")
    with pytest.raises(CheckpointError, match="--overwrite"):
        lm.save_gguf(tmp_path / "out")
    lm.save_gguf(tmp_path / "out", overwrite=True)
    assert sorted(each.name for each in (tmp_path / "out").iterdir()) == [MODELFILE, GGUF_FILE]


def make_bert(words: Tokenizer, pooling: str = "mean") -> LanguageModel:
    """A random BERT that was trained for embeddings."""
    config = transformers.BertConfig(
        vocab_size=words.vocab_size + 5,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=97,
    )
    hf_model = transformers.BertModel(config, add_pooling_layer=False)
    module = ours_of(randomize(hf_model, 1, std=0.2))
    settings = Settings().with_task("contrastive", pooling=pooling)
    return LanguageModel(module.spec, module, words, settings)


@pytest.mark.parametrize("pooling", ["mean", "first"])
@pytest.mark.parametrize("options", [{}, {"lowercase": False}, {"normalize": False}], ids=str)
def test_bert_has_the_same_token_ids_and_embeddings(
    options: Mapping[str, Any], pooling: str, tmp_path: Path
) -> None:
    # llama.cpp removes more than accents in Devanagari and Hangul.
    texts = [text.replace("हिन्दी ไทย 한국어", "") for text in TEXTS]
    words = WordPiece(vocab_size=400, **options).train(texts * 3, progress=False)
    lm = make_bert(words, pooling)
    lm.save_gguf(tmp_path / "out", weight_type="f32")
    server = LlamaCpp(tmp_path / "out" / GGUF_FILE, embedding=True)
    more = [*texts, *random_texts(300)]
    for text, ids in zip(more, words.encode_ids_batch(more), strict=True):
        assert server.encode(text) == ids, text
    for text, ours in zip(texts, lm.embed(texts)):
        [theirs] = server.post("/embedding", content=text)
        assert torch.tensor(theirs["embedding"][0]) @ ours > 0.9999


ENCODER = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "max_position_embeddings": 97,
}
MODERNBERT = {**ENCODER, "local_attention": 10, "global_attn_every_n_layers": 2}
NOMIC_BERT = {**ENCODER, "type_vocab_size": 3}


def train_encoder_tokenizer(trainer: Any) -> Tokenizer:
    specials = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    return trainer(vocab_size=400, special_tokens=specials).train(TEXTS[:1] * 3, progress=False)


def make_encoder(
    name: str, words: Tokenizer, options: Mapping[str, Any], *, head: str = "Model"
) -> LanguageModel:
    """A random encoder of `transformers` as ours, which was trained for embeddings."""
    roles = {f"{role}_token_id": getattr(words, f"{role}_id") for role in ("pad", "cls", "sep")}
    config = getattr(transformers, f"{name}Config")(
        vocab_size=words.vocab_size + 5, **options, **roles, bos_token_id=None, eos_token_id=None
    )
    bare = {"add_pooling_layer": False} if name == "Bert" else {}
    hf_model = getattr(transformers, name + head)(config, **bare)
    module = ours_of(randomize(hf_model, 1, std=0.2))
    settings = Settings(config={"model_type": config.model_type, "max_position_embeddings": 97})
    return LanguageModel(
        module.spec, module, words, settings.with_task("contrastive", pooling="mean")
    )


@pytest.mark.parametrize("trainer", [ByteBPE, WordPiece])
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("Bert", ENCODER),
        ("ModernBert", MODERNBERT),
        ("NomicBert", NOMIC_BERT),
        ("NomicBert", {**NOMIC_BERT, "rope_parameters": YARN}),
        ("NomicBert", {**ENCODER, "rope_parameters": LINEAR}),
    ],
)
def test_encoders_with_either_tokenizer_have_the_same_embeddings(
    name: str,
    options: Mapping[str, Any],
    trainer: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for activation in ("gelu", "gelu_tanh"):
        monkeypatch.setitem(ACTIVATIONS, activation, ggml_gelu)
    words = train_encoder_tokenizer(trainer)
    lm = make_encoder(name, words, options)
    lm.save_gguf(tmp_path / "out", weight_type="f32")
    server = LlamaCpp(tmp_path / "out" / GGUF_FILE, embedding=True)
    texts = [TEXTS[0][:length] for length in (1, 8, 40, 75)]
    for text, ours in zip(texts, lm.embed(texts)):
        [theirs] = server.post("/embedding", content=text)
        difference = (torch.tensor(theirs["embedding"][0]) - ours).abs().max()
        assert difference < (2e-5 if name == "NomicBert" else 4e-3)
    for text, ids in zip(random_texts(200), words.encode_ids_batch(random_texts(200))):
        expected = [words.cls_id, *ids, words.sep_id]
        assert server.encode(text, adds_special=True) == expected, text


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"head_dim": 8}, "head_dim = hidden_size / num_attention_heads = 16; this model has 8"),
        ({"hidden_act": "gelu"}, "hidden_act = 'silu'"),
        ({"rope_parameters": LLAMA3}, 'type "llama3"'),
    ],
)
def test_options_of_nomic_bert_that_llama_cpp_does_not_compute_are_refused(
    changes: Mapping[str, Any], named: str, tmp_path: Path
) -> None:
    words = train_encoder_tokenizer(WordPiece)
    lm = make_encoder("NomicBert", words, {**NOMIC_BERT, **changes})
    with pytest.raises(SpecError, match=named):
        lm.save_gguf(tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("name", "options"), [("ModernBert", MODERNBERT), ("NomicBert", NOMIC_BERT)]
)
def test_an_encoder_is_written_without_its_head(
    name: str, options: Mapping[str, Any], tmp_path: Path
) -> None:
    lm = make_encoder(name, train_encoder_tokenizer(ByteBPE), options, head="ForMaskedLM")
    with pytest.warns(UserWarning, match=r"its head .mlm. is not written"):
        lm.save_gguf(tmp_path / "out", weight_type="f32")
    server = LlamaCpp(tmp_path / "out" / GGUF_FILE, embedding=True)
    [theirs] = server.post("/embedding", content=TEXTS[0][:40])
    assert torch.tensor(theirs["embedding"][0]) @ lm.embed(TEXTS[0][:40]) > 0.999


@pytest.mark.parametrize(
    ("case", "pooling"),
    [*((case, "last") for case in CASES if "-" not in case), ("llama", "mean"), ("llama", "first")],
)
@pytest.mark.filterwarnings("ignore:llama.cpp has no sliding window")
def test_a_decoder_for_embeddings_has_the_same_vectors(
    case: str, pooling: str, tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("gelu", "gelu_tanh"):
        monkeypatch.setitem(ACTIVATIONS, name, ggml_gelu)
    lm = make_model(case, tokenizer, headless=True)
    lm.settings = lm.settings.with_task("contrastive", pooling=pooling)
    server = LlamaCpp(lm.save_gguf(tmp_path / "out", weight_type="f32") / GGUF_FILE, embedding=True)
    texts = [TEXTS[0][:length] for length in (3, 11, 40)]
    for text, ours in zip(texts, lm.embed(texts)):
        [theirs] = server.post("/embedding", content=text)
        assert torch.tensor(theirs["embedding"][0]) @ ours > 0.99999
    assert "PARAMETER temperature" not in (tmp_path / "out" / MODELFILE).read_text()


@pytest.mark.parametrize("added", [["<|im_start|>", "<|im_end|>"], ["", "<|im_end|>"], ["", ""]])
def test_texts_of_a_decoder_for_embeddings_have_the_tokens_of_its_template(
    added: list[str], tokenizer: Tokenizer, tmp_path: Path
) -> None:
    before, after = ([token] if token else [] for token in added)
    layout = json.loads(tokenizer.to_json())
    layout["post_processor"] = json.loads(
        tokenizers.processors.TemplateProcessing(
            single=[*before, "$A", *after],
            special_tokens=[(name, index) for name, index in tokenizer.special_tokens.items()],
        ).__getstate__()
    )
    own = Tokenizer(tokenizers.Tokenizer.from_str(json.dumps(layout)))
    lm = make_model("qwen3", own, headless=True)
    lm.settings = lm.settings.with_task("contrastive", pooling="last")
    server = LlamaCpp(lm.save_gguf(tmp_path / "out", weight_type="f32") / GGUF_FILE, embedding=True)
    special = own.special_tokens
    [ids] = own.encode_ids_batch(TEXTS[:1])
    expected = [*(special[each] for each in before), *ids, *(special[each] for each in after)]
    assert server.encode(TEXTS[0], adds_special=True) == expected
    [theirs] = server.post("/embedding", content=TEXTS[0][:50])
    assert torch.tensor(theirs["embedding"][0]) @ lm.embed(TEXTS[0][:50]) > 0.99999


def test_the_prompt_of_embeddings_is_named(tokenizer: Tokenizer, tmp_path: Path) -> None:
    lm = make_model("llama", tokenizer)
    lm.settings = lm.settings.with_task("contrastive", pooling="mean", prompt="query: ")
    with pytest.warns(UserWarning, match="put 'query: ' before every text"):
        lm.save_gguf(tmp_path / "out")


def test_a_wordpiece_whose_scripts_lose_vowels_is_named(tmp_path: Path) -> None:
    words = WordPiece(vocab_size=400).train(TEXTS * 3, progress=False)
    with pytest.warns(UserWarning, match="texts in these scripts get other ids"):
        make_bert(words).save_gguf(tmp_path / "out")


def test_the_head_of_an_encoder_is_left_out_with_a_warning(tmp_path: Path) -> None:
    words = WordPiece(vocab_size=200).train(TEXTS[:1] * 3, progress=False)
    config = transformers.BertConfig(
        vocab_size=words.vocab_size, hidden_size=24, intermediate_size=29, num_attention_heads=2
    )
    module = ours_of(randomize(transformers.BertForMaskedLM(config), 1))
    lm = LanguageModel(module.spec, module, words)
    with pytest.warns(UserWarning, match="its head .mlm. is not written"):
        lm.save_gguf(tmp_path / "out")
    assert LlamaCpp(tmp_path / "out" / GGUF_FILE, embedding=True).encode("The fox")
    assert "PARAMETER stop" not in (tmp_path / "out" / MODELFILE).read_text()


def test_a_classifier_is_refused(tmp_path: Path) -> None:
    words = WordPiece(vocab_size=200).train(TEXTS[:1] * 3, progress=False)
    config = transformers.BertConfig(
        vocab_size=words.vocab_size, hidden_size=24, intermediate_size=29, num_attention_heads=2
    )
    module = ours_of(randomize(transformers.BertForSequenceClassification(config), 1))
    with pytest.raises(SpecError, match="without a head; this model has: classifier"):
        LanguageModel(module.spec, module, words).save_gguf(tmp_path / "out")


def test_the_command_exports_a_saved_model(
    tokenizer: Tokenizer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved, out = str(tmp_path / "saved"), str(tmp_path / "out")
    lm = make_model("llama", tokenizer)
    lm.save(saved)
    assert main(["export", saved, out, "--format", "gguf", "--type", "f32"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{out}: GGUF, f32"
    assert [line.split()[0] for line in lines[1:]] == [MODELFILE, GGUF_FILE]
    server = LlamaCpp(tmp_path / "out" / GGUF_FILE)
    assert server.encode(TEXTS[0]) == list(tokenizer.encode(TEXTS[0]).ids)
    assert main(["export", saved, str(tmp_path / "hf"), "--type", "f32"]) == 2
    assert "--format hf takes no --type" in capsys.readouterr().err


def test_the_command_exports_an_adapter_alone(
    tokenizer: Tokenizer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = make_model("qwen3_moe", tokenizer)
    lm = with_random_adapter(base)
    assert lm.adapter is not None
    lm.adapter = replace(lm.adapter, base=str(base.save(tmp_path / "base")))
    tuned, out = str(lm.save_adapter(tmp_path / "tuned")), str(tmp_path / "out")
    command = ["export", tuned, out, "--format", "gguf", "--adapter-only"]
    assert main(command) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{out}: GGUF, LoRA, f16"
    assert [line.split()[0] for line in lines[1:]] == [ADAPTER_FILE]
    assert main([*command, "--overwrite", "--type", "bf16"]) == 0
    fields = gguf.GGUFReader(tmp_path / "out" / ADAPTER_FILE).fields
    assert fields["adapter.type"].contents() == "lora"
    assert main(["export", tuned, out, "--adapter-only"]) == 2
    assert "--adapter-only needs --format gguf" in capsys.readouterr().err
