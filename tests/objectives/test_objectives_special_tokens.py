"""An objective with special tokens of its own, which is one class and nothing else."""

from __future__ import annotations

import json
from typing import ClassVar, Literal

import numpy as np
import pytest
from labelled_tasks import DECODER_KINDS, FAMILIES, KINDS, TO_TARGET, examples_of, record
from overfit_tasks import untrained
from own_kinds import own_kinds
from run_settings import quiet, settings

from trivium.data.batch import IGNORE_INDEX, Batch
from trivium.errors import RecipeError, TokenizerError
from trivium.model_loading import load
from trivium.objectives import LabelledObjective
from trivium.objectives.causal import Causal
from trivium.text import Tokenizer
from trivium.workflows.training import pretrain

RENDERED = (*DECODER_KINDS, "reward")
MARKS = ("<|fim_suffix|>", "<|fim_middle|>")
TEXT = "\n\n".join(
    f"the {a} cat sat on the {b} mat <|fim_middle|> here {a}{b}."
    for a in "abcdefgh"
    for b in "uvwxyz"
)


def fill_in_the_middle():
    class FillInTheMiddle(Causal):
        """A row with its second half first, each half after a mark."""

        kind: Literal["gap-filling"] = "gap-filling"
        special_tokens: ClassVar[tuple[str, ...]] = MARKS

        def prepare(self, rows, rng, vocabulary):
            suffix, middle = map(vocabulary.id_of, MARKS)
            ids, half = rows.input_ids, rows.input_ids.shape[1] // 2
            marks = np.ones((len(ids), 1), dtype=np.int64)
            ids = np.hstack((suffix * marks, ids[:, half:], middle * marks, ids[:, :half]))
            labels = np.hstack((ids[:, 1:], np.full((len(ids), 1), IGNORE_INDEX)))
            return Batch(input_ids=ids, labels=labels)

    return FillInTheMiddle


@pytest.mark.parametrize("kind", sorted(Tokenizer.kinds))
def test_it_trains_with_every_kind_of_tokenizer(kind, tmp_path):
    file = tmp_path / "text.txt"
    file.write_text(TEXT)
    with own_kinds():
        fill_in_the_middle()
        changes = {
            **settings(steps=6, eval_every=6, save_every=6),
            "objective.kind": "gap-filling",
            "tokenizer.kind": kind,
        }
        changes |= {"tokenizer.vocab_size": 300, "data.length": 16}
        run = pretrain(
            "llama-tiny", data=file, out=tmp_path / "run", changes=changes, console=quiet()
        )
        lm = load(run.path)
    assert lm.tokenizer is not None
    ids = [lm.tokenizer.special_tokens[mark] for mark in MARKS]
    assert lm.tokenizer.vocabulary.id_of(MARKS[1]) == ids[1]
    # Its name in the text of the run, and in a prompt, is the token itself.
    assert lm.prompting.prompts(["the cat <|fim_middle|>"])[0][-1] == ids[1]
    shards = np.concatenate([np.fromfile(f, dtype=np.uint16) for f in run.shards.rglob("*.bin")])
    assert (shards == ids[1]).sum() == TEXT.count(MARKS[1])
    assert lm.generate("the cat <|fim_middle|>", max_new_tokens=3) is not None


def test_tokenizers_without_them_are_refused(tmp_path):
    file = tmp_path / "text.txt"
    file.write_text(TEXT)
    other = Tokenizer.train("bpe", texts=[TEXT], vocab_size=120, progress=False).save(
        tmp_path / "t"
    )
    chosen = ["<|endoftext|>", MARKS[0]]
    with own_kinds():
        objective = fill_in_the_middle()()
        for tokenizer, missing in (
            ({"path": str(other)}, f"needs the special tokens {', '.join(MARKS)}"),
            ({"special_tokens": chosen}, f"needs the special token {MARKS[1]}"),
        ):
            changes = [{"objective": {"kind": objective.kind}, "tokenizer": tokenizer}]
            with pytest.raises(RecipeError, match=missing.replace("|", "[|]")):
                pretrain(
                    "llama-tiny",
                    data=file,
                    out=tmp_path / "run",
                    changes=changes[0],
                    console=quiet(),
                )
        with pytest.raises(TokenizerError, match="has no special token"):
            Tokenizer.load(other).vocabulary.id_of(MARKS[0])


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "policy"])
def test_names_in_labelled_examples_are_text(kind, tmp_path):
    """Only a model that reads names as special tokens finds more of them than without names."""

    def control(name, special_tokens):
        line = json.dumps([record(kind, n, size=13, response=1) for n in range(3)])
        records = json.loads(line.replace("sat", name))
        examples = examples_of(kind, tmp_path / "a.jsonl", records)
        objective = LabelledObjective.kinds[kind].from_tree({"kind": kind})
        objective, lm = untrained(objective, examples, FAMILIES[kind])
        encoded = objective.encode(examples, lm.reading(special_tokens))
        rows = encoded.take(range(len(encoded)))
        special = {*lm.tokenizer.special_ids} - {lm.tokenizer.unk_id, lm.tokenizer.pad_id}
        if kind in TO_TARGET:
            assert not special & {*lm.text_tokenizer.encode_ids_batch([name])[0]}
        return [
            int(one) for one in rows.input_ids.ravel() if one in special - {lm.tokenizer.pad_id}
        ]

    name = {"bert": "[SEP]", "gpt2": "<|endoftext|>", "t5": "</s>"}[FAMILIES[kind]]
    without = control("word", "text")
    assert control("word", "special") == without
    assert control(name, "text") == without
    assert len(control(name, "special")) >= len(without) + 3 or kind in RENDERED
