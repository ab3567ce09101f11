"""Example texts for the input fields of the playground."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from trivium.data.shards import MANIFEST, VALIDATION, Manifest
from trivium.errors import TriviumError
from trivium.language_model import LanguageModel
from trivium.objectives.excerpt import first_words, mask_middle
from trivium.objectives.task_metrics import read_prediction
from trivium.serve.models import ModelRegistry
from trivium.serve.playground.texts import LANGUAGES

_SHOWN_WORDS, _PROMPT_WORDS = 12, 5


class Examples:
    """Example texts for the input fields of a tab, chosen for the first model of the tab.

    If the model is a training run, the examples are validation texts of the run. Otherwise, they
    are English or Chinese: the language in which the model's tokenizer has more bytes per token.
    Unknown tokens count as zero bytes.
    """

    def __init__(self, registry: ModelRegistry, models: Mapping[str, LanguageModel]) -> None:
        name, lm = next(iter(models.items()))
        tokenizer = lm.source_tokenizer

        def bytes_per_token(text: str) -> float:
            """Return the mean number of bytes per token in a text."""
            (ids,) = tokenizer.encode_ids_batch([text])
            known = (tokenizer.token_bytes[index] for index in ids if index != tokenizer.unk_id)
            return sum(map(len, known)) / max(1, len(ids))

        self._language = max(LANGUAGES, key=lambda texts: bytes_per_token(texts["example.text"]))
        self._validation_texts = find_validation_texts(Path(registry.get_model(name).path or ""))
        for key in {"text", "completions"} & self._validation_texts.keys():
            self._validation_texts[key] = lm.settings.task_prefixes[0] + self._validation_texts[key]
        if lm.spec.family == "encoder-decoder" and lm.settings.task is None:
            # A model that was only pretrained fills gaps.
            gap = next(iter(tokenizer.sentinel_ids), tokenizer.mask_id)
            if gap is not None:
                masked = self("fill-mask").replace("[MASK]", tokenizer.tokens[gap])
                self._validation_texts["completions"] = masked

    def __call__(self, key: str) -> str:
        """Return the example for the input field `key`, or "" if there is none."""
        return self._validation_texts.get(key) or self._language.get(f"example.{key}", "")


def find_validation_texts(run: Path) -> dict[str, str]:
    """Find validation texts of a training run. Returns a dict of input field -> text.

    Fields without a text are left out. If the folder is not a run, the dict is empty.
    """
    example = read_prediction(str(run))
    text = example.get("source") or example.get("text") or ""
    users = (turn["content"] for turn in example.get("messages", ()) if turn["role"] == "user")
    excerpt = next(_iter_excerpts(run), "")
    masked = mask_middle(excerpt, "[MASK]", words=_SHOWN_WORDS)
    texts = {
        "text": text or first_words(excerpt, _SHOWN_WORDS),
        "completions": text or first_words(excerpt, _PROMPT_WORDS),
        "fill-mask": masked[0] if masked else "",
        "pair": example.get("pair", ""),
        "tag": " ".join(example.get("words", ())),
        "chat": next(users, ""),
        "answer.question": example.get("question", ""),
        "answer.context": example.get("context", ""),
    }
    return {key: text for key, text in texts.items() if text}


def _iter_excerpts(run: Path) -> Iterator[str]:
    """Yield one validation excerpt from each token shard folder of a run."""
    for manifest in sorted((run / "shards").glob(f"**/{MANIFEST}")):
        with contextlib.suppress(TriviumError, OSError):
            splits = Manifest.load(manifest.parent).splits
            split = splits.get(VALIDATION) or next(iter(splits.values()))
            yield from split.excerpts[:1]
