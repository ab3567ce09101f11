"""`trivium finetune`: teach a model a task."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trivium.errors import RecipeError
from trivium.workflows.finetune import finetune as run_finetuning

app = typer.Typer(add_completion=False)

_EPILOG = """Examples:

  trivium finetune classification --model runs/mine --data reviews.jsonl --out runs/sentiment

  trivium finetune tagging --model runs/mine --data train.conllu --validation valid.conllu

  trivium finetune qa --model hf/minilm --data squad.json --out runs/qa --set train.minutes=20

  trivium finetune translation --model transformer-mini --data en-fr.tsv --out runs/en-fr

  trivium finetune translation --model marian-mini --data text.en --data text.de

  trivium finetune text-to-text --model runs/t5 --data pairs.jsonl --set 'task.prefix="simplify: "'

  trivium finetune summarization --model hf/bart --data articles.jsonl --set adapter.rank=8

  trivium finetune lm --model runs/gpt --data chats.jsonl --set model.freeze=layers:2

  trivium finetune --resume --out runs/sentiment
"""


@app.command(epilog=_EPILOG)
def finetune(
    task: Annotated[
        str | None,
        typer.Argument(
            metavar="TASK",
            help="classification (of texts or pairs, several labels, numbers), tagging, qa, "
            "translation, text-to-text, summarization, lm (prompts and responses), or a recipe.",
        ),
    ] = None,
    model: Annotated[
        str,
        typer.Option(
            help="What to start from: a run, a checkpoint, a Hugging Face folder or name, or a "
            "preset, which starts from random weights."
        ),
    ] = "",
    data: Annotated[
        list[str] | None,
        typer.Option(help="Labelled examples: files, folders, globs; .xz, .gz and .zst too."),
    ] = None,
    validation: Annotated[
        list[str] | None,
        typer.Option(help="Files to be judged by, or a fraction of --data (0.1 unless given)."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The run folder; runs/TASK unless given.")
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a key of the recipe."),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run in --out, exactly.")
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the run that --out holds.")
    ] = False,
) -> None:
    """Teach a model a task by labelled examples; the best weights are kept and measured.

    Ctrl-C saves and stops; --resume goes on as if nothing had happened. docs/finetune.md lists
    the keys of the recipe.
    """
    if task is None and not resume:
        raise RecipeError(
            "name a task, such as `trivium finetune classification --model runs/mine --data "
            "reviews.jsonl`."
        )
    if resume and (data or overwrite or model or validation):
        raise RecipeError("--resume takes model and examples from the run: leave out the others.")
    if resume and out is None:
        raise RecipeError("--resume needs to know which run: give --out RUN.")
    run_finetuning(
        task or "",
        model=model,
        data=data or (),
        validation=_fraction_or_files(validation),
        out=out or Path("runs") / Path(task or "").stem,
        changes=changes or (),
        resume=resume,
        overwrite=overwrite,
    )


def _fraction_or_files(given: list[str] | None) -> float | list[str] | None:
    if given is None or len(given) != 1:
        return given
    try:
        return float(given[0])
    except ValueError:
        return given
