"""Models in lm-evaluation-harness (EleutherAI), which has the tasks that papers report.

Tasks on local files need no network: a YAML file with `dataset_path: json` and
`dataset_kwargs: {data_files: {validation: /path/to/file.jsonl}}` in a folder of tasks.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trivium.errors import SpecError, TriviumError, did_you_mean, require_extra
from trivium.evaluate.perplexity import rolling_log_probability
from trivium.evaluate.prompting import truncate_left
from trivium.inference.score import encode_item, score_continuations
from trivium.language_model import LanguageModel

_EXTRA = "lm-eval"
_MAX_NEW_TOKENS = 256  # the harness's own default


def harness_model(lm: LanguageModel) -> Any:
    """A model for `lm_eval.simple_evaluate(model=harness_model(lm), ...)`.

    Decoders and encoder-decoders give log-likelihoods and generate; encoders give
    pseudo-log-likelihoods (Salazar et al. 2020) and do not generate.

    Raises:
        MissingExtraError: the harness is not installed.
    """
    with require_extra("lm-evaluation-harness", _EXTRA):
        from lm_eval.api.model import LM

    class HarnessModel(LM):
        """`LM` by means of `LanguageModel`."""

        def loglikelihood(self, requests: list[Any]) -> list[tuple[float, bool]]:
            """(log p(continuation | context), whether it is the greedy one) of each request."""
            # Consecutive requests with the same context are continuations of one item.
            groups = itertools.groupby(requests, key=lambda request: request.args[0])
            items = [encode_item(lm, text, [one.args[1] for one in some]) for text, some in groups]
            scored = score_continuations(lm, items, truncate=True)
            return [(score.total, score.greedy) for scores in scored for score in scores]

        def loglikelihood_rolling(self, requests: list[Any]) -> list[float]:
            """log p(text) of each request."""
            return [rolling_log_probability(lm, request.args[0]) for request in requests]

        def generate_until(self, requests: list[Any]) -> list[str]:
            """The generated text of each request, up to a stop string."""
            return [_generated(lm, *request.args) for request in requests]

    return HarnessModel()


def run_tasks(
    lm: LanguageModel,
    tasks: Sequence[str],
    *,
    folder: str | Path | None = None,
    shots: int | None = None,
    limit: int | None = None,
) -> dict[str, dict[str, float]]:
    """Metrics of the harness's tasks: task -> "acc,none" -> value, as the harness names them.

    Args:
        lm: the model.
        tasks: names of tasks, of the folder or of the harness itself.
        folder: YAML files of tasks; if it is set, these are the only known ones.
        shots: solved examples in the prompt; default: as the task says.
        limit: only the first examples of a task.

    Raises:
        MissingExtraError: the harness is not installed.
        TriviumError: no such folder or task.
    """
    manager = find_tasks(tasks, folder=folder)
    from lm_eval.evaluator import simple_evaluate

    results = simple_evaluate(
        model=harness_model(lm),
        tasks=list(tasks),
        num_fewshot=shots,
        limit=limit,
        task_manager=manager,
        log_samples=False,
        bootstrap_iters=0,
    )
    assert results is not None  # None is for all processes but the first
    return {
        task: {
            name: float(value)
            for name, value in metrics.items()
            if name != "alias" and isinstance(value, int | float)
        }
        for task, metrics in results.get("results", {}).items()
    }


def find_tasks(tasks: Sequence[str], *, folder: str | Path | None = None) -> Any:
    """The harness's `TaskManager` of a folder, or of its own tasks, which has all the tasks.

    Raises as `run_tasks`.
    """
    with require_extra("lm-evaluation-harness", _EXTRA):
        from lm_eval.tasks import TaskManager
    if folder is not None and not Path(folder).is_dir():
        raise TriviumError(f"{folder}: there is no such folder of tasks.")
    manager = TaskManager(
        include_path=None if folder is None else str(folder), include_defaults=folder is None
    )
    unknown = [task for task in tasks if task not in manager.all_tasks]
    if unknown or not tasks:
        where, names = folder or "the harness", sorted(manager.all_tasks)
        more = "" if len(names) <= 20 else f" and {len(names) - 20} more"
        known = f"{', '.join(names[:20]) or 'none'}{more}"
        near = did_you_mean(unknown[0], names) if unknown else ""
        unknown_names = ", ".join(unknown) or "(none named)"
        raise TriviumError(f"{where} has no task {unknown_names}; known are {known}.{near}")
    return manager


def _generated(lm: LanguageModel, context: str, options: dict[str, Any]) -> str:
    if "generate" not in lm.capabilities:
        raise SpecError("this task needs generated text, and this model generates none.")
    until = options.get("until") or []
    stops = [until] if isinstance(until, str) else [stop for stop in until if stop]
    count = int(options.get("max_gen_toks") or options.get("max_new_tokens") or _MAX_NEW_TOKENS)
    if lm.spec.max_length is not None:  # the harness wants more than small models have positions
        count = min(count, max(1, lm.spec.max_length // 2))
    sampled = bool(options.get("do_sample", False))
    return lm.generate(
        truncate_left(lm, context, count),
        max_new_tokens=count,
        stop=stops,
        temperature=float(options.get("temperature") or 0.0) if sampled else 0.0,
        top_k=options.get("top_k") if sampled else None,
        top_p=options.get("top_p") if sampled else None,
        seed=0,
    )
