"""Model evaluation with lm-evaluation-harness (EleutherAI), the tool that most papers use.

A task whose data is a local file needs no network. It is defined by a YAML file in a folder of
tasks, with `dataset_path: json` and `dataset_kwargs: {data_files: {validation:
/path/to/file.jsonl}}`.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trivium.errors import SpecError, TriviumError, did_you_mean, require_extra
from trivium.evaluate.perplexity import compute_rolling_logprob
from trivium.evaluate.prompting import truncate_left
from trivium.inference.score import encode_item, score_continuations
from trivium.language_model import LanguageModel

_EXTRA = "lm-eval"
_MAX_NEW_TOKENS = 256  # the harness's own default


def make_harness_model(lm: LanguageModel) -> Any:
    """Wrap a model for lm-evaluation-harness.

    The returned object is passed as `model` to the harness's function `simple_evaluate`. Decoders
    and encoder-decoders compute log-likelihoods and generate text. Encoders compute
    pseudo-log-likelihoods (Salazar et al. 2020) and do not generate text.

    Raises:
        MissingExtraError: lm-evaluation-harness is not installed.
    """
    with require_extra("lm-evaluation-harness", _EXTRA):
        from lm_eval.api.model import LM

    class HarnessModel(LM):
        """A `LanguageModel` with the interface `LM` of lm-evaluation-harness."""

        def loglikelihood(self, requests: list[Any]) -> list[tuple[float, bool]]:
            """Return a pair (log p(continuation | context), is_greedy) for each request.

            The arguments of a request are the context and the continuation. `is_greedy` is true if
            greedy decoding would generate the continuation.
            """
            # Consecutive requests with the same context are continuations of one item.
            groups = itertools.groupby(requests, key=lambda request: request.args[0])
            items = [encode_item(lm, text, [one.args[1] for one in some]) for text, some in groups]
            scored = score_continuations(lm, items, truncate=True)
            return [(score.total, score.greedy) for scores in scored for score in scores]

        def loglikelihood_rolling(self, requests: list[Any]) -> list[float]:
            """Return the log-probability of the text of each request."""
            return [compute_rolling_logprob(lm, request.args[0]) for request in requests]

        def generate_until(self, requests: list[Any]) -> list[str]:
            """Return the text generated for each request, up to a stop string."""
            return [_generate_until(lm, *request.args) for request in requests]

    return HarnessModel()


def run_tasks(
    lm: LanguageModel,
    tasks: Sequence[str],
    *,
    folder: str | Path | None = None,
    shots: int | None = None,
    limit: int | None = None,
) -> dict[str, dict[str, float]]:
    """Evaluate a model on lm-evaluation-harness tasks, and return the metrics of each task.

    The result is a nested dict: result[task][metric] is a value. Metrics have the same names as in
    the harness, such as "acc,none".

    Args:
        lm: the model.
        tasks: the names of the tasks.
        folder: a folder of YAML files that define tasks. If it is set, the harness's own tasks are
            not available.
        shots: the number of few-shot examples; default: the number that the task specifies.
        limit: the maximum number of examples to evaluate per task; default: all.

    Raises:
        MissingExtraError: lm-evaluation-harness is not installed.
        TriviumError: the folder or a task does not exist.
    """
    manager = load_task_manager(tasks, folder=folder)
    from lm_eval.evaluator import simple_evaluate

    results = simple_evaluate(
        model=make_harness_model(lm),
        tasks=list(tasks),
        num_fewshot=shots,
        limit=limit,
        task_manager=manager,
        log_samples=False,
        bootstrap_iters=0,
    )
    assert results is not None  # None only in processes other than the first one
    return {
        task: {
            name: float(value)
            for name, value in metrics.items()
            if name != "alias" and isinstance(value, int | float)
        }
        for task, metrics in results.get("results", {}).items()
    }


def load_task_manager(tasks: Sequence[str], *, folder: str | Path | None = None) -> Any:
    """Load the `TaskManager` of lm-evaluation-harness, and check that it knows all `tasks`.

    The manager knows only the tasks defined in `folder`. If `folder` is None, it knows the
    harness's own tasks.

    Raises:
        MissingExtraError: lm-evaluation-harness is not installed.
        TriviumError: the folder or a task does not exist.
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
        unknown_names = ", ".join(unknown) or "(none given)"
        raise TriviumError(f"{where} has no task {unknown_names}; known tasks: {known}.{near}")
    return manager


def _generate_until(lm: LanguageModel, context: str, options: dict[str, Any]) -> str:
    """Generate a continuation of a context with the generation options of a harness task.

    Raises SpecError if the model cannot generate text.
    """
    if "generate" not in lm.capabilities:
        raise SpecError("this task needs generated text, but this model cannot generate text.")
    until = options.get("until") or []
    stops = [until] if isinstance(until, str) else [stop for stop in until if stop]
    count = int(options.get("max_gen_toks") or options.get("max_new_tokens") or _MAX_NEW_TOKENS)
    if lm.spec.max_length is not None:  # small models have too few positions for the task's count
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
