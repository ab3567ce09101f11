"""The tests of a public course, run through `adapters.py`, which calls only public names.

    git clone https://github.com/stanford-cs336/assignment1-basics
    pip install einops psutil
    CS336_ASSIGNMENT1=assignment1-basics pytest -m course tests/course

The adapter is also checked by itself, against `transformers`, without the course.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path

import adapters
import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

CHECKOUT = os.environ.get("CS336_ASSIGNMENT1", "")
# Among pairs that are equally frequent the course takes the greatest in the order of bytes, the
# `tokenizers` library the one whose parts were learned first.
DIFFERENT = {"test_train_bpe"}
GPT2 = "https://openaipublic.blob.core.windows.net/gpt-2/encodings/main"


@pytest.fixture(scope="module")
def checkout(tmp_path_factory) -> Path:
    """A copy of the course with our adapter, and GPT-2's vocabulary where tiktoken looks for it."""
    if not CHECKOUT:
        pytest.skip("set CS336_ASSIGNMENT1 to a checkout of stanford-cs336/assignment1-basics")
    copy = tmp_path_factory.mktemp("course") / "course"
    shutil.copytree(CHECKOUT, copy, ignore=shutil.ignore_patterns(".git"))
    shutil.copy(adapters.__file__, copy / "tests" / "adapters.py")
    fixtures, cache = copy / "tests" / "fixtures", copy / "tiktoken"
    cache.mkdir()
    merges = b"#version: 0.2\n" + (fixtures / "gpt2_merges.txt").read_bytes()
    vocabulary = (fixtures / "gpt2_vocab.json").read_bytes()
    for name, content in (("vocab.bpe", merges), ("encoder.json", vocabulary)):
        (cache / hashlib.sha1(f"{GPT2}/{name}".encode()).hexdigest()).write_bytes(content)
    return copy


@pytest.mark.course
def test_the_course(checkout: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "--junit-xml=report.xml", "tests"]
    environment = os.environ | {"TIKTOKEN_CACHE_DIR": str(checkout / "tiktoken")}
    subprocess.run(command, cwd=checkout, env=environment)
    cases = list(ET.parse(checkout / "report.xml").iter("testcase"))
    failed = {
        str(case.get("name")): problem.get("message") or ""
        for case in cases
        for problem in (*case.findall("failure"), *case.findall("error"))
    }
    absent = {name for name, message in failed.items() if "FileNotFoundError" in message}
    print(f"{len(cases)} tests, {len(failed)} fail: {sorted(failed)}; no fixture: {sorted(absent)}")
    assert len(cases) > 40
    assert failed.keys() - absent == DIFFERENT


@pytest.mark.course
def test_merges_differ_among_equally_frequent_pairs_only(checkout: Path) -> None:
    """Every merge is of a most frequent pair, counted here anew."""
    import regex

    path = checkout / "tests" / "fixtures" / "corpus.en"
    _, merges = adapters.run_train_bpe(path, 500, ["<|endoftext|>"])
    pattern = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
    counts = Counter(regex.findall(pattern, path.read_text(encoding="utf-8")))
    words = [([bytes([byte]) for byte in word.encode()], n) for word, n in counts.items()]
    for merge in merges:
        pairs: Counter[tuple[bytes, bytes]] = Counter()
        for parts, count in words:
            for pair in itertools.pairwise(parts):
                pairs[pair] += count
        assert pairs[merge] == max(pairs.values()), merge
        for parts, _ in words:
            at = 0
            while at < len(parts) - 1:
                if (parts[at], parts[at + 1]) == merge:
                    parts[at : at + 2] = [merge[0] + merge[1]]
                at += 1


WIDTH, HEADS, LAYERS, VOCABULARY, LENGTH = 24, 3, 2, 31, 11


def test_the_adapter_is_a_llama_with_interleaved_rotary_positions() -> None:
    """Without the course's weights: rows of queries and keys in the order of `transformers`."""
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=WIDTH, intermediate_size=40, num_hidden_layers=LAYERS,
        num_attention_heads=HEADS, rms_norm_eps=1e-5, tie_word_embeddings=False,
    )  # fmt: skip
    reference = LlamaForCausalLM(config).eval()
    theirs = reference.state_dict()
    names = {
        "model.embed_tokens": "token_embeddings", "model.norm": "ln_final", "model.": "",
        "self_attn.o_proj": "attn.output_proj", "self_attn": "attn", "input_layernorm": "ln1",
        "post_attention_layernorm": "ln2", "mlp.gate_proj": "ffn.w1", "mlp.down_proj": "ffn.w2",
        "mlp.up_proj": "ffn.w3",
    }  # fmt: skip
    weights = {}
    for name, weight in theirs.items():
        weight.normal_(0.0, 0.3)
        for old, new in names.items():
            name = name.replace(old, new)
        if "q_proj" in name or "k_proj" in name:
            halves = weight.view(HEADS, 2, WIDTH // HEADS // 2, WIDTH)
            weight = halves.transpose(1, 2).reshape(WIDTH, WIDTH)
        weights[name] = weight
    ids = torch.randint(VOCABULARY, (2, LENGTH))
    logits = adapters.run_transformer_lm(
        VOCABULARY, LENGTH, WIDTH, LAYERS, HEADS, 40, 10_000.0, weights, ids
    )
    torch.testing.assert_close(logits, reference(ids).logits, rtol=1e-3, atol=1e-4)
    block = {name[9:]: weight for name, weight in weights.items() if name.startswith("layers.0.")}
    x, layer = torch.randn(2, LENGTH, WIDTH), reference.model.layers[0]
    rotary = reference.model.rotary_emb(x, torch.arange(LENGTH)[None])
    mask = torch.full((LENGTH, LENGTH), -torch.inf).triu(1)[None, None]
    expected = layer(x, attention_mask=mask, position_embeddings=rotary)
    ours = adapters.run_transformer_block(WIDTH, HEADS, 40, LENGTH, 10_000.0, block, x)
    torch.testing.assert_close(ours, expected, rtol=1e-3, atol=1e-4)
    projections = [block[f"attn.{name}_proj.weight"] for name in ("q", "k", "v", "output")]
    expected, _ = layer.self_attn(x, attention_mask=mask, position_embeddings=rotary)
    for positions in (None, torch.arange(LENGTH)[None]):
        ours = adapters.run_multihead_self_attention_with_rope(
            WIDTH, HEADS, LENGTH, 10_000.0, *projections, x, positions
        )
        torch.testing.assert_close(ours, expected, rtol=1e-3, atol=1e-4)
    gates = [block[f"ffn.{name}.weight"] for name in ("w1", "w2", "w3")]
    torch.testing.assert_close(adapters.run_swiglu(WIDTH, 40, *gates, x), layer.mlp(x))
    still = torch.zeros(1, LENGTH, dtype=torch.int64)
    without = adapters.run_multihead_self_attention_with_rope(
        WIDTH, HEADS, LENGTH, 10_000.0, *projections, x, still
    )
    torch.testing.assert_close(
        without, adapters.run_multihead_self_attention(WIDTH, HEADS, *projections, x)
    )


def test_batches_are_rows_and_the_tokens_after_them() -> None:
    inputs, targets = adapters.run_get_batch(np.arange(50), 7, 5, "cpu")
    assert torch.equal(inputs + 1, targets)
    assert inputs.shape == (7, 5)
