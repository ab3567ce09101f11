"""Write the model card of an exported model, the `README.md` that the Hugging Face hub shows."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import jinja2
from huggingface_hub import ModelCardData

from trivium.adapt import count_parameters
from trivium.bundled_models import find_bundled_model
from trivium.data.samples import BUNDLED_TEXTS, find_bundled_text
from trivium.evaluate.prompting import compute_wilson_interval
from trivium.files import STDIN, read_json, write_file
from trivium.interop.hf_folder import CONFIG
from trivium.language_model import LanguageModel
from trivium.model_folder import is_run
from trivium.progress import format_duration
from trivium.remote_model import find_local_path
from trivium.report import RunFiles, read_run
from trivium.report.run_files import to_float

MODEL_CARD = "README.md"
_TEMPLATE = Path(__file__).with_name("model_card.md.j2")
_QUESTION = re.compile(r"to fill in:", re.IGNORECASE)
_LICENCE_QUESTION = "**To fill in:** under which licence is this text?"

# A TOML string that is an absolute path or an address: everything before the last part is private.
_PATH = re.compile(r'"(?:/|~|[A-Za-z]:\\|[a-z0-9+]+://)[^"\n]*?([^"\n/\\]*)[/\\]*"')
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+(@[\w./-]+)?")

# The task on the hub by the end of the class name in config.json.
_PIPELINE_TAGS = {
    "ForMaskedLM": "fill-mask",
    "ForCausalLM": "text-generation",
    "LMHeadModel": "text-generation",
    "ForSequenceClassification": "text-classification",
    "ForTokenClassification": "token-classification",
    "ForQuestionAnswering": "question-answering",
    "ForQuestionAnsweringSimple": "question-answering",
    "ForConditionalGeneration": "text2text-generation",
    "MTModel": "translation",
}
_TASK_TAGS = {
    "contrastive": "sentence-similarity",
    "reranking": "text-ranking",
    "translation": "translation",
    "summarization": "summarization",
}
# Metrics that are the fraction of examples with a right answer, or of queries with a found passage.
_FRACTIONS = ("accuracy", "subset_accuracy", "ranking_accuracy", "exact_match")
_RECALL = "recall@"

_PIPELINE = """\
from transformers import pipeline

model = pipeline("{tag}", model="{name}")
print(model("{text}"))"""
_SENTENCES = """\
from sentence_transformers import SentenceTransformer

model = SentenceTransformer("{name}")
vectors = model.encode(["A first text.", "A second text."])
print(model.similarity(vectors, vectors))"""
_RANKING = """\
from sentence_transformers import CrossEncoder

model = CrossEncoder("{name}")
print(model.predict([("A question?", "A passage."), ("A question?", "Another passage.")]))"""
_SEQ2SEQ = """\
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("{name}")
model = AutoModelForSeq2SeqLM.from_pretrained("{name}")
outputs = model.generate(**tokenizer("{text}", return_tensors="pt"))
print(tokenizer.decode(outputs[0], skip_special_tokens=True))"""
_ANSWER = """\
from transformers import AutoModelForQuestionAnswering, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("{name}")
model = AutoModelForQuestionAnswering.from_pretrained("{name}")
inputs = tokenizer("Who wrote it?", "Ada wrote it.", return_tensors="pt")
outputs = model(**inputs)
start, end = int(outputs.start_logits.argmax()), int(outputs.end_logits.argmax())
print(tokenizer.decode(inputs["input_ids"][0][start : end + 1]))"""
_SNIPPETS = {
    "sentence-similarity": _SENTENCES,
    "text-ranking": _RANKING,
    "text2text-generation": _SEQ2SEQ,
    "translation": _SEQ2SEQ,
    "summarization": _SEQ2SEQ,
    "question-answering": _ANSWER,
}


@dataclass(frozen=True)
class _DataRow:
    """A row of the table of data in a model card.

    Args:
        name: the name of the file or data set, without its folder.
        run: the run that was trained on it.
        origin: what it contains, or a question.
        licence: its licence as a link, or a question.
        languages: its languages; None if they are unknown.
        dataset: its name on the hub, if it is from there.
    """

    name: str
    run: str
    origin: str
    licence: str
    languages: tuple[str, ...] | None = None
    dataset: str | None = None


def write_model_card(
    folder: str | os.PathLike[str],
    lm: LanguageModel,
    model: str | os.PathLike[str],
    *,
    name: str | None = None,
) -> int:
    """Write `README.md` to an exported Hugging Face folder. Returns the number of open questions.

    The card says what the files of the run say: data, recipe, losses and metrics with confidence
    intervals. What no file says is a question that starts with "To fill in:". The card is in
    English, and contains no path of this machine.

    Args:
        folder: a folder that `save_hf` wrote.
        lm: the model in the folder.
        model: the run that was exported. For any other model, data and training are questions.
        name: the name of the model on the hub; default: the name of the folder.

    Raises:
        CheckpointError: a file of the run is damaged, or the run has no log records yet.
    """
    folder, config = Path(folder), read_json(Path(folder) / CONFIG)
    source = find_local_path(model)
    run = read_run(source) if is_run(source) else None
    name = name or folder.resolve().name
    architecture = config["architectures"][0]
    tag = _find_pipeline_tag(architecture, lm)
    rows = [] if run is None else [*_list_data(run, set())]
    known = all(row.languages is not None for row in rows)
    languages = sorted({code for row in rows for code in row.languages or ()} if known else ())
    sentences = (folder / "modules.json").is_file() or "sentence_transformers" in config
    metadata = ModelCardData(
        library_name="sentence-transformers" if sentences else "transformers",
        pipeline_tag=tag,
        language=languages or None,
        base_model=None if run is None else _find_hub_base(run),
        datasets=[row.dataset for row in rows if row.dataset] or None,
        tags=["trivium"],
    )
    environment = jinja2.Environment(
        trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    text = environment.from_string(_TEMPLATE.read_text(encoding="utf-8")).render(
        metadata=metadata.to_yaml(),
        name=name,
        kind={"encoder-only": "encoder", "decoder-only": "decoder"}.get(
            lm.spec.family, lm.spec.family
        ),
        architecture=architecture,
        model_type=config["model_type"],
        num_parameters=sum(count_parameters(lm.module)),
        vocab_size=None if lm.tokenizer is None else lm.tokenizer.vocab_size,
        max_length=lm.max_length,
        labels=lm.settings.labels,
        version=version("trivium"),
        snippet=_make_snippet(tag, name, lm),
        run=run,
        data=rows,
        counts=None if run is None else _describe_counts(run),
        start=None if run is None else _describe_start(run),
        training=[] if run is None else [*_list_training(run)],
        recipe=None if run is None else _shorten_paths(run.recipe_text).strip(),
        metrics=[] if run is None else [*_list_metrics(run)],
        num_examples=None if run is None else run.evaluation.get("num_examples"),
        notes=[] if run is None else run.evaluation.get("notes", []),
    )
    write_file(folder / MODEL_CARD, text.rstrip() + "\n")
    return len(_QUESTION.findall(text))


def _find_pipeline_tag(architecture: str, lm: LanguageModel) -> str:
    """Return the task of a model on the hub, such as "fill-mask"."""
    ends = (tag for end, tag in _PIPELINE_TAGS.items() if architecture.endswith(end))
    return _TASK_TAGS.get(lm.settings.task or "") or next(ends, "feature-extraction")


def _make_snippet(tag: str, name: str, lm: LanguageModel) -> str:
    """Return Python code that uses the model with the library that the hub names for it."""
    text, tokenizer = "A text to read.", lm.tokenizer
    if tag == "fill-mask" and tokenizer is not None and tokenizer.mask_id is not None:
        text = f"A text to {tokenizer.tokens[tokenizer.mask_id]}."
    if tag == "text-generation":
        text = "Once upon a time"
    prefix = str(lm.settings.task_options(lm.settings.task or "").get("prefix", ""))
    code = _SNIPPETS.get(tag, _PIPELINE)
    return code.format(tag=tag, name=name, text=(prefix + text).replace('"', "'"))


def _list_data(run: RunFiles, seen: set[Path]) -> Iterator[_DataRow]:
    """Yield the data of a run, then the data of the run that its weights come from.

    `seen` contains the folders of the runs that were listed already.
    """
    seen.add(run.folder.resolve())
    for source in [run.recipe.get("data") or {}, *(run.recipe.get("mix") or ())]:
        for path in source.get("paths", ()):
            yield _describe_source(str(path), run.name)
    base = run.get_setting("model", "init_from")
    if base is None:
        return
    folder = Path(base)
    if folder.parent.name == "checkpoints":
        folder = folder.parent.parent
    if is_run(folder):
        if folder.resolve() not in seen:
            yield from _list_data(read_run(folder), seen)
    elif not folder.exists() and find_bundled_model(base) is not None:
        text = BUNDLED_TEXTS["stories.txt"]
        yield _DataRow(
            f"weights of {base}", "", text.origin, _link(text.licence, text.url), text.languages
        )
    elif _find_hub_base(run) is not None:
        yield _DataRow(
            f"weights of {base}",
            "",
            f"see <https://huggingface.co/{base.partition('@')[0]}>",
            "**To fill in:** under which licence are these weights and their data?",
        )
    else:
        yield _DataRow(
            f"weights of {folder.name}",
            "",
            "**To fill in:** on which text were these weights trained?",
            _LICENCE_QUESTION,
        )


def _describe_source(path: str, run: str) -> _DataRow:
    """Return the row of one path of a recipe: a bundled text, a data set of the hub or own data."""
    text = find_bundled_text(path)
    if text is not None:
        licence = _link(text.licence, text.url)
        return _DataRow(Path(path).name, run, text.origin, licence, text.languages)
    if path.startswith("hf:"):
        dataset = re.split(r"[:?@]", path.removeprefix("hf:"), maxsplit=1)[0]
        page = f"see <https://huggingface.co/datasets/{dataset}>"
        return _DataRow(dataset, run, page, _LICENCE_QUESTION, dataset=dataset)
    question = "**To fill in:** where is this text from, and what is in it?"
    name = "standard input" if path == STDIN else re.split(r"[/\\]", path.rstrip("/"))[-1]
    return _DataRow(name, run, question, _LICENCE_QUESTION)


def _link(text: str, url: str) -> str:
    """Return a link in Markdown."""
    return f"[{text}]({url})"


def _find_hub_base(run: RunFiles) -> str | None:
    """Return the name on the hub of the model that a run started from, or None."""
    base = run.get_setting("model", "init_from")
    if base is None or Path(base).exists() or not _HUB_NAME.fullmatch(base):
        return None
    return base.partition("@")[0]


def _describe_counts(run: RunFiles) -> str:
    """Return a sentence with the number of documents, tokens or examples of a run."""
    counts = [
        f"{int(number):,} {label}"
        for key, label in (
            ("documents", "documents"),
            ("train_tokens", "tokens for training"),
            ("valid_tokens", "tokens for validation"),
            ("train_examples", "examples for training"),
            ("valid_examples", "examples for validation"),
        )
        if (number := run.get_metadata(key))
    ]
    return f"In total: {', '.join(counts)}." if counts else ""


def _describe_start(run: RunFiles) -> str:
    """Return a sentence that says which weights the run started from."""
    base = run.get_setting("model", "init_from")
    if base is None:
        preset = run.get_setting("model", "preset")
        return f"Trained from new weights{f', with the preset `{preset}`' if preset else ''}."
    name = _find_hub_base(run) or Path(base).name
    return f"Trained from the weights of `{name}`."


def _list_training(run: RunFiles) -> Iterator[tuple[str, str]]:
    """Yield the rows of the table of training: objective, budget, losses and hardware."""
    step = run.get_metadata("weights_step") or run.get_last("step")
    unit = "nats" if run.metric else "nats per token"
    yield "objective", run.objective
    for label, key in (("steps", "step"), ("tokens", "tokens")):
        if (number := run.get_last(key)) is not None:
            yield label, f"{int(number):,}"
    if step is not None:
        yield "step of the weights", f"{int(step):,}"
    losses = [loss for at, loss in run.get_curve("train_loss") if step is None or at <= step]
    if losses:
        yield "training loss", f"{losses[-1]:.4f} {unit}"
    loss = run.validation_metrics.get("loss")
    if loss is not None:
        yield "validation loss", f"{loss:.4f} {unit}"
        if run.predicts_next_token:
            yield "validation perplexity", f"{math.exp(min(loss, 700.0)):.2f} per token"
        if (bits := run.bits_per_byte(loss)) is not None:
            yield "validation bits per byte", f"{bits:.3f}"
    if (unigram := run.get_metadata("unigram_loss")) is not None:
        yield "loss of the unigram baseline", f"{unigram:.4f} nats per token"
    if (seconds := run.get_last("seconds")) is not None:
        yield "time", format_duration(seconds)
    known = run.metadata.get
    yield "hardware", ", ".join(map(str, filter(None, (known("device"), known("precision")))))
    yield "software", f"Trivium {known('trivium', '')}, PyTorch {known('torch', '')}"


def _list_metrics(run: RunFiles) -> Iterator[dict[str, str]]:
    """Yield the metrics of the final evaluation, with the interval of those that are fractions."""
    count = to_float(run.evaluation.get("num_examples"))
    for name, number in (run.evaluation.get("values") or {}).items():
        value = to_float(number)
        interval = "not known"
        # In tagging, accuracy counts words, which are not independent of the rest of the sentence.
        is_fraction = name in _FRACTIONS and run.evaluation.get("task") != "tagging"
        if value is not None and count and (is_fraction or name.startswith(_RECALL)):
            low, high = compute_wilson_interval(value, int(count))
            interval = f"{low:.4f} to {high:.4f}"
        shown = "undefined" if value is None else f"{value:.4f}"
        yield {"name": name, "value": shown, "interval": interval}


def _shorten_paths(recipe: str) -> str:
    """Return the text of a recipe in which each absolute path is replaced with its last part."""
    return _PATH.sub(r'"\1"', recipe)
