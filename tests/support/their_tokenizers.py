"""Small tokenizers as published families have them: one as ours, the same one as theirs."""

from __future__ import annotations

import functools
from typing import Any

import tokenizers
from tokenizers import processors

from trivium.text import Tokenizer

TEXT = [
    "The weather was cloudy yesterday, but today it's rainy. Who wrote the first programme?",
    "Ada Lovelace wrote notes on the engine; the notes were longer than the paper itself.",
    "今天天气很好。我们去公园。「你好」",
    "Été à Zürich: 3,5 °C ☃ und Straße. Ça va? déjà vu",
]
SAMPLES = [
    *TEXT,
    "",
    "a",
    "  two  spaces\tand a tab\n\nnew line ",
    "unseen wörds, 明天 & <b> 😀😀 e\u0301te\u0301",
    "yesterday the weather",
]
KINDS = ["bert", "roberta", "t5", "llama", "gpt2"]
_SPECIALS = ("<pad>", "<s>", "</s>", "<unk>", "<mask>")
_ROLES = {
    "bert": {},
    "roberta": {
        "cls": "<s>",
        "sep": "</s>",
        "bos": "<s>",
        "eos": "</s>",
        "pad": "<pad>",
        "mask": "<mask>",
    },
    "t5": {"eos": "</s>", "pad": "<pad>", "unk": "<unk>"},
    "llama": {"bos": "<s>", "eos": "</s>", "unk": "<unk>"},
    "gpt2": {"eos": "<|endoftext|>", "bos": "<|endoftext|>"},
}


@functools.cache
def ours(family: str) -> Tokenizer:
    """One of KINDS."""
    kind = {"bert": "wordpiece", "t5": "unigram", "llama": "bpe"}.get(family, "byte-bpe")
    size = {"bert": 211, "t5": 191, "llama": 231}.get(family, 331)
    specials = {"bert": None, "gpt2": ("<|endoftext|>",)}.get(family, _SPECIALS)
    trained = Tokenizer.train(
        kind, texts=TEXT * 5, vocab_size=size, special_tokens=specials, progress=False
    )
    backend = trained.backend
    one, two = ("<s>", 1), ("</s>", 2)
    match family:
        case "roberta":
            backend.post_processor = processors.RobertaProcessing(
                two, one, trim_offsets=True, add_prefix_space=False
            )
        case "t5":
            backend.post_processor = processors.TemplateProcessing(
                single="$A </s>", pair="$A </s> $B </s>", special_tokens=[two]
            )
        case "llama":
            backend.post_processor = processors.TemplateProcessing(
                single="<s> $A", pair="<s> $A <s>:1 $B:1", special_tokens=[one]
            )
        case "gpt2":
            backend.post_processor = processors.ByteLevel(trim_offsets=True)
    return Tokenizer(tokenizers.Tokenizer.from_str(backend.to_str()), _ROLES[family])


@functools.cache
def theirs(family: str) -> Any:
    """The same as a fast tokenizer of `transformers`."""
    from transformers import PreTrainedTokenizerFast

    mine = ours(family)
    roles = {f"{role}_token": token for role, token in mine.roles.items()}
    roles.setdefault("pad_token", mine.tokens[0])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizers.Tokenizer.from_str(mine.to_json()), **roles
    )
