"""`trivium finetune`: fine-tune a model on labelled data.

Examples:

  trivium finetune classification --model runs/mine --data reviews.jsonl --out runs/sentiment

  trivium finetune tagging --model runs/mine --data train.conllu --validation valid.conllu

  trivium finetune qa --model hf/minilm --data squad.json --out runs/qa --set train.minutes=20

  trivium finetune contrastive --model runs/mine --data questions.jsonl --out runs/search

  trivium finetune tsdae --model runs/mine --data sentences.txt --out runs/vectors

  trivium finetune translation --model transformer-mini --data en-fr.tsv --out runs/en-fr

  trivium finetune translation --model marian-mini --data text.en --data text.de

  trivium finetune text-to-text --model t5-mini --data pairs.jsonl --set objective.prefix=simplify:

  trivium finetune summarization --model hf/bart --data articles.jsonl --set adapter.rank=8

  trivium finetune chat --model runs/gpt --data chats.jsonl --set model.freeze=layers:2

  trivium finetune reward --model runs/chat --data preferences.jsonl --out runs/reward

  trivium finetune preference --model runs/chat --data preferences.jsonl --out runs/preferred

  trivium finetune kto --model runs/chat --data unpaired.jsonl --set objective.beta=0.2

  trivium finetune policy --model runs/sums --data sums.jsonl --set objective.beta=0

  trivium finetune --resume --out runs/sentiment
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer
from typer.core import TyperCommand

from trivium.cli import _options as opt
from trivium.cli import load_json
from trivium.cli._shared import choose_run_folder, format_overrides, parse_validation
from trivium.data.documents import ReadOptions
from trivium.data.python_data import PathList
from trivium.interrupts import exit_on_interrupt
from trivium.messages import detect_language, load_chinese_recipe, translated

_TASKS = load_json("keys")["tasks"]
"""Task name -> the keys of the task's objective, each with its description and default."""


class Command(TyperCommand):
    """The click command `finetune`, whose `--help` also lists the recipe keys of the task."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Store the name of the task for use in `--help`, then parse the arguments."""
        self._task = next((arg for arg in args if arg in _TASKS), None)
        return super().parse_args(ctx, args)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments and options. If a task is given, also write its recipe keys."""
        super().format_options(ctx, formatter)
        if self._task is None:
            return
        keys = _TASKS[self._task]
        with formatter.section(translated("finetune.keys", task=self._task, key=keys[0][0])):
            formatter.write_dl(
                [(f"objective.{key}", _format_key_help(*text)) for key, *text in keys]
            )


def _format_key_help(description: str, default: str) -> str:
    """Return the help text of a recipe key in the user's language.

    A `kind` has no description: the keys after it belong to the kind `default`.
    """
    if not description:
        return f'"{default}"'
    shown = f" [default: {default}]" if default else ""
    if detect_language() == "zh":
        return f"{load_chinese_recipe()['keys'][description]}。{shown}"
    return f"{description[:1].upper()}{description[1:]}.{shown}"


@opt.with_options(ReadOptions, exclude=["separator", "text_field"], unset="{}")
def finetune(
    task: Annotated[
        str | None,
        typer.Argument(metavar="TASK", help=f"The task: {', '.join(_TASKS)}; or a recipe file."),
    ] = None,
    model: str = "",
    data: list[str] | None = None,
    validation: Annotated[list[str] | None, typer.Option(show_default="0.1")] = None,
    out: Annotated[str | None, typer.Option(metavar="PATH", show_default="runs/TASK")] = None,
    changes: opt.Set = None,
    resume: opt.Resume = False,
    auto_resume: opt.AutoResume = False,
    overwrite: opt.Overwrite = False,
    no_verify: opt.NoVerify = False,
    **data_options: Any,
) -> None:
    """Fine-tune a model on labelled data, then evaluate the best weights.

    Ctrl-C saves a checkpoint and stops. --resume continues the run; the steps are the same as
    without the interruption (a run with a budget in minutes trains for the time that is left).
    --resume reads all settings from the run folder: give --out, or repeat the command.
    `trivium finetune TASK --help` lists the keys of a task; docs/reference/recipe lists all keys.

    Args:
        model: The model to start from: a run, a checkpoint, a Hugging Face folder or name, or a
            preset (random weights). If a preset and a Hugging Face model have the same name,
            NAME@main is the Hugging Face model.
        data: Labelled examples: files, folders or globs, which may be compressed. Replaces
            data.paths of a recipe file.
        validation: Validation files, or the fraction of --data to use for validation.
        out: The run folder; may be s3://bucket/runs/NAME.
    """
    advice = (
        "name a task, such as `trivium finetune classification --model runs/mine --data "
        "reviews.jsonl`."
    )
    resumed: bool | Literal["auto"] = "auto" if auto_resume else resume
    out = choose_run_folder(task, out, advice, resume=resumed, overwrite=overwrite)
    with exit_on_interrupt():
        from trivium.workflows.training import finetune as run_finetuning

    run_finetuning(
        task or "",
        model=model,
        data=PathList(data or ()),
        validation=None if validation is None else parse_validation(validation),
        out=out,
        changes=format_overrides(data_options, changes, no_verify=no_verify),
        resume=resumed,
        overwrite=overwrite,
    )
