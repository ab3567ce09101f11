"""Our models in lm-evaluation-harness (EleutherAI), which has the tasks that papers report.

Tasks read from local files need no network: a YAML file with `dataset_path: json` and
`dataset_kwargs: {data_files: {validation: /path/to/file.jsonl}}` in a folder of tasks.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trivium.errors import MissingExtraError, SpecError, TriviumError
from trivium.evaluate.choices import text_tokenizer
from trivium.evaluate.perplexity import rolling_log_probability
from trivium.evaluate.writing import write_until
from trivium.inference.continuations import encode_item, score_continuations
from trivium.language_model import LanguageModel

if TYPE_CHECKING:
    from lm_eval.api.instance import Instance
    from lm_eval.api.model import LM

_EXTRA = "lm-eval"
_MAX_NEW_TOKENS = 256  # as the harness has it


def harness_model(lm: LanguageModel) -> LM:
    """A model as the harness takes one: `lm_eval.simple_evaluate(model=harness_model(lm), ...)`.

    Decoders and encoder-decoders give log-likelihoods and write; encoders give
    pseudo-log-likelihoods (Salazar et al. 2020) and write nothing. Requests in a row with the same
    context are one item, whose numbers depend on no batch size.

    Raises:
        MissingExtraError: the harness is not installed.
    """
    try:
        from lm_eval.api.model import LM
    except ImportError:
        raise MissingExtraError("lm-evaluation-harness", _EXTRA) from None

    class HarnessModel(LM):
        """`LM` by way of `LanguageModel`."""

        def loglikelihood(self, requests: list[Instance]) -> list[tuple[float, bool]]:
            """(log p(continuation | context), whether it is the greedy one) of every request."""
            return list(_log_likelihoods(lm, [_pair(request) for request in requests]))

        def loglikelihood_rolling(self, requests: list[Instance]) -> list[float]:
            """log p(text) of every request, in windows as the harness lays them."""
            return [rolling_log_probability(lm, request.args[0]) for request in requests]

        def generate_until(self, requests: list[Instance]) -> list[str]:
            """What the model writes after every context, up to a stop."""
            return [_written(lm, *request.args) for request in requests]

    return HarnessModel()


def run_tasks(
    lm: LanguageModel,
    tasks: Sequence[str],
    *,
    folder: str | Path | None = None,
    shots: int | None = None,
    limit: int | None = None,
    seed: int = 0,
) -> dict[str, dict[str, float]]:
    """Metrics of the harness's tasks: task -> "acc,none" -> value, as the harness names them.

    Args:
        lm: the model.
        tasks: names of tasks, of the folder or of the harness itself.
        folder: where YAML files of tasks of one's own are; given, only those are known.
        shots: answered examples in the prompt; None: as the task says.
        limit: only the first so many examples of a task.
        seed: of the examples that are drawn.

    Raises:
        MissingExtraError: the harness is not installed.
        TriviumError: no such folder or task.
    """
    try:
        from lm_eval.evaluator import simple_evaluate
        from lm_eval.tasks import TaskManager
    except ImportError:
        raise MissingExtraError("lm-evaluation-harness", _EXTRA) from None
    if folder is not None and not Path(folder).is_dir():
        raise TriviumError(f"{folder}: there is no such folder of tasks.")
    manager = TaskManager(
        include_path=None if folder is None else str(folder), include_defaults=folder is None
    )
    unknown = [task for task in tasks if task not in manager.all_tasks]
    if unknown or not tasks:
        where = "the harness" if folder is None else str(folder)
        known = ", ".join(sorted(manager.all_tasks)[:20]) or "none"
        raise TriviumError(
            f"{where} has no task {', '.join(unknown) or 'by no name'}; it has {known}."
        )
    found = simple_evaluate(
        model=harness_model(lm),
        tasks=list(tasks),
        num_fewshot=shots,
        limit=limit,
        task_manager=manager,
        log_samples=False,
        bootstrap_iters=0,
        random_seed=seed,
        numpy_random_seed=seed,
        torch_random_seed=seed,
        fewshot_random_seed=seed,
    )
    assert found is not None  # None is for other processes than the first
    results = found.get("results", {})
    return {task: _numbers(dict(metrics)) for task, metrics in results.items()}


def _pair(request: Instance) -> tuple[str, str]:
    arguments: Any = request.args
    return arguments[0], arguments[1]


def _numbers(metrics: dict[str, Any]) -> dict[str, float]:
    """The metrics of a task: not its name, nor errors that were not estimated."""
    return {
        name: float(value)
        for name, value in metrics.items()
        if name != "alias" and isinstance(value, int | float)
    }


def _log_likelihoods(
    lm: LanguageModel, requests: Iterable[tuple[str, str]]
) -> Iterator[tuple[float, bool]]:
    """Requests in a row with the same context are the options of one item."""
    tokenizer = text_tokenizer(lm)
    start = lm.decoder_start(tokenizer)
    apart = lm.spec.family == "encoder-decoder"
    for context, group in itertools.groupby(requests, key=lambda request: request[0]):
        options = [option for _, option in group]
        item = encode_item(tokenizer, context, options, apart=apart)
        (scores,) = score_continuations(
            lm.module, [item], tokenizer=tokenizer, decoder_start=start, cut=True
        )
        for score in scores:
            yield score.log_probability, score.greedy


def _written(lm: LanguageModel, context: str, options: dict[str, Any]) -> str:
    if "generate" not in lm.verbs:
        raise SpecError("this task wants text, and this model writes none.")
    until = options.get("until") or []
    stops = [until] if isinstance(until, str) else [stop for stop in until if stop]
    new = options.get("max_gen_toks") or options.get("max_new_tokens") or _MAX_NEW_TOKENS
    samples = bool(options.get("do_sample", False))
    temperature = float(options.get("temperature") or 0.0) if samples else 0.0
    limit = lm.spec.max_length
    if limit is not None:  # the harness asks for more than small models have positions
        new = min(int(new), max(1, limit // 2))
    text, _ = write_until(
        lm,
        context,
        stops,
        max_new_tokens=int(new),
        temperature=temperature,
        top_k=options.get("top_k") if samples else None,
        top_p=options.get("top_p") if samples else None,
    )
    return text
