"""Special tokens from the data of a run to its exports: ends of turns, and names in texts."""

from __future__ import annotations

import json

import pytest
import torch
import transformers
from run_settings import quiet, settings

from trivium.data.prepare import prepare
from trivium.data.splitting import CorpusOptions
from trivium.errors import DataError, RecipeError
from trivium.inference.request import GenerationRequest
from trivium.interop.settings import Settings
from trivium.language_model import LanguageModel
from trivium.model_loading import load
from trivium.models import build
from trivium.presets import presets
from trivium.text import Tokenizer
from trivium.workflows.training import finetune, pretrain

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA3 = CHATML.replace("im_start", "start_header_id").replace("im_end", "eot_id")
WORDS = ["red", "blue", "green", "grey"]
TEXTS = [f"what is {one} ? a {other} rose" for one in WORDS for other in WORDS]
MARKS = ["<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    special = ["<|endoftext|>", "<s>", *MARKS]
    return Tokenizer.train(
        "byte-bpe", texts=TEXTS, vocab_size=300, special_tokens=special, progress=False
    )


@pytest.mark.parametrize(("template", "end"), [(CHATML, "<|im_end|>"), (LLAMA3, "<|eot_id|>")])
def test_the_end_of_a_turn_ends_generation_after_fine_tuning(tokenizer, template, end, tmp_path):
    spec = presets["llama-tiny"].replace(vocab_size=tokenizer.vocab_size)
    base = LanguageModel(spec, build(spec, seed=0), tokenizer, Settings(chat_template=template))
    index = tokenizer.token_to_id(end)
    assert index not in base.generation_rules.stop_ids
    base.save(tmp_path / "base")
    rows = [{"prompt": f"what is {one} ?", "response": f"a {one} rose"} for one in WORDS]
    data = tmp_path / "chats.jsonl"
    data.write_text("\n".join(map(json.dumps, rows * 9)))
    changes = {"train.steps": 60, "train.device": "cpu"}
    changes |= {"optimizer.lr": 1e-2, "data.validation": 0.0, "train.batch_examples": 36}
    run = finetune(
        "chat",
        model=tmp_path / "base",
        data=data,
        out=tmp_path / "run",
        changes=changes,
        console=quiet(),
    )
    lm = load(run.path)
    messages = [{"role": "user", "content": "what is blue ?"}]
    ids = lm.conversation_ids(messages)
    request = GenerationRequest(ids, lm.sampling_params(ids, {"temperature": 0.0}), answers=True)
    engine = lm.engine()
    list(engine.stream(engine.add(request)))
    assert request.finish_reason == "stop"
    assert request.text.strip() in {f"a {one} rose" for one in WORDS}
    prompt = tokenizer.decode(ids, skip_special_tokens=False)
    assert lm.generate(prompt, temperature=0.0).strip() == request.text.strip()
    lm.save_hf(tmp_path / "hf")
    exported = json.loads((tmp_path / "hf" / "generation_config.json").read_text())
    assert exported["eos_token_id"] == [tokenizer.eos_id, index]
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hf")
    generated = theirs.generate(torch.tensor([ids]), do_sample=False, max_new_tokens=50)
    assert generated[0, -1] == index
    assert index not in generated[0, len(ids) : -1]
    assert tokenizer.decode(generated[0, len(ids) :].tolist()).strip() == request.text.strip()


@pytest.mark.parametrize("template", [None, CHATML])
def test_a_template_whose_turns_no_token_closes_is_told(template, tmp_path):
    tokenizer = Tokenizer.train(
        "byte-bpe", texts=TEXTS, vocab_size=300, special_tokens=["<pad>"], progress=False
    )
    spec = presets["llama-tiny"].replace(vocab_size=tokenizer.vocab_size)
    base = LanguageModel(spec, build(spec, seed=0), tokenizer, Settings(chat_template=template))
    base.save(tmp_path / "base")
    data = [{"prompt": one, "response": "a rose"} for one in TEXTS]
    changes = {"train.steps": 1, "train.device": "cpu", "data.validation": 0.0}
    with pytest.warns(UserWarning, match="answers do not end by themselves"):
        finetune(
            "chat",
            model=tmp_path / "base",
            data=data,
            out=tmp_path / "run",
            changes=changes,
            console=quiet(),
        )


SAID = "the [SEP] cat <|endoftext|> sat on [MASK] mats </s> here"


@pytest.mark.parametrize("kind", sorted(Tokenizer.kinds))
def test_names_in_the_text_of_shards_are_text(kind, tmp_path):
    file = tmp_path / "text.txt"
    file.write_text("\n\n".join(f"{SAID} number {number}" for number in range(60)))
    special = ["<unk>", "[SEP]", "<|endoftext|>", "[MASK]", "</s>"]
    texts = [SAID, *(f"number {number}" for number in range(60))] * 3
    tokenizer = Tokenizer.train(
        kind, texts=texts, vocab_size=320, special_tokens=special, progress=False
    )

    def count(options: CorpusOptions, out: str) -> list[int]:
        shards = prepare(file, tokenizer, tmp_path / out, options=options)
        counts = sum(shards.split(name).counts() for name in shards.names)
        ends = (
            shards.manifest.splits["train"].documents
            + shards.manifest.splits["validation"].documents
        )
        suffix = dict.fromkeys(tokenizer.suffix_ids, ends)
        return [
            int(counts[tokenizer.token_to_id(one)]) - suffix.get(tokenizer.token_to_id(one), 0)
            for one in special[1:]
        ]

    text, control = CorpusOptions(), CorpusOptions(special_tokens="special")
    assert count(text, "text") == [0] * 4
    assert count(control, "special") == [60] * 4
    assert count(CorpusOptions(control_tokens=("[MASK]",)), "mask") == [0, 0, 60, 0]
    for options, out in ((text, "special"), (control, "text")):
        with pytest.raises(DataError, match="made with special_tokens"):
            prepare(file, tokenizer, tmp_path / out, options=options)


def test_the_key_of_a_run_is_kept_and_cannot_be_changed(tmp_path):
    file, keys = tmp_path / "text.txt", {"console": quiet()}
    file.write_text("\n\n".join(f"{SAID} number {number}" for number in range(60)))
    changes = {**settings(steps=2, eval_every=2, save_every=2), "data.special_tokens": "special"}
    run = pretrain("gpt2-tiny", data=file, out=tmp_path / "run", changes=changes, **keys)
    lm = load(run.path)
    assert lm.special_tokens == "special"
    assert lm.text_tokenizer.encode("<|endoftext|>").ids == (lm.tokenizer.eos_id,)
    with pytest.raises(RecipeError, match=r"cannot change data.special_tokens"):
        pretrain("", out=run.path, resume=True, changes={"data.special_tokens": "text"}, **keys)
    shards = tmp_path / "shards"
    del changes["tokenizer"]
    prepare(file, lm.tokenizer, shards)
    with pytest.raises(RecipeError, match="prepared with --special-tokens text"):
        pretrain("gpt2-tiny", data=shards, out=tmp_path / "other", changes=changes, **keys)
    lm = load(
        pretrain(
            "gpt2-tiny",
            data=shards,
            out=tmp_path / "third",
            changes=changes | {"data.special_tokens": "text"},
            **keys,
        ).path
    )
    assert lm.special_tokens == "text"
    assert lm.tokenizer.eos_id not in lm.text_tokenizer.encode("<|endoftext|>").ids
