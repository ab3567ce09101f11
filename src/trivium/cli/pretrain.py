"""`trivium pretrain`: train a model from raw text.

Examples:

  trivium pretrain bert-small --data my_texts/ --out runs/mine

  trivium pretrain llama-mini --data book.txt --set train.minutes=10 --set data.length=256

  trivium pretrain textbook-bert --data wiki.txt --out runs/textbook

  trivium pretrain bert-mini --data my_texts/ --set objective.kind=sentence-pairs

  trivium pretrain bert-base --data my_texts/ --show-recipe

  trivium pretrain electra-mini --data my_texts/ --set objective.kind=replaced-token

  trivium pretrain gpt2-mini --out runs/mixed \\
  --set 'mix=[{name="wiki", paths=["wiki/"]}, {name="code", paths=["code/"]}]'

  trivium pretrain hf/bert-base --data my_texts/ --out runs/continued

  trivium pretrain --resume --out runs/mine

  trivium pretrain --resume --out runs/mine --set train.steps=4000
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer

from trivium.cli import _options as opt
from trivium.cli._shared import choose_run_folder, format_overrides
from trivium.data.documents import ReadOptions
from trivium.data.python_data import PathList
from trivium.interrupts import exit_on_interrupt


@opt.with_options(ReadOptions, unset="{}")
def pretrain(
    recipe: Annotated[str | None, typer.Argument(metavar="PRESET_OR_RECIPE")] = None,
    data: list[str] | None = None,
    out: Annotated[
        str | None, typer.Option(metavar="PATH", show_default="runs/PRESET_OR_RECIPE")
    ] = None,
    changes: opt.Set = None,
    resume: opt.Resume = False,
    auto_resume: opt.AutoResume = False,
    overwrite: opt.Overwrite = False,
    no_verify: opt.NoVerify = False,
    show_batch: bool = False,
    show_recipe: bool = False,
    **data_options: Any,
) -> None:
    """Train a model from raw text: train a tokenizer, encode token shards, train, write a report.

    The default objective depends on the model: masked for encoders, causal for decoders,
    span-corruption (T5) or denoising (BART) for encoder-decoders, bidirectional-lm for ELMo,
    blank-filling for GLM. Choose another one with --set objective.kind=... The key mix lists
    several data sources, each with its own objective and weight. docs/reference/recipe lists all
    keys.

    Ctrl-C saves a checkpoint and stops. --resume continues the run; the steps are the same as
    without the interruption (a run with a budget in minutes trains for the time that is left).
    --resume reads all settings from the run folder: give --out, or repeat the command. The file
    recipe.toml in the run folder is complete, so that it reproduces the run.

    Args:
        recipe: A preset (see `trivium presets`), a bundled recipe, a TOML file, or the folder of a
            model (Trivium or Hugging Face) to continue pretraining.
        data: Text: files, folders, globs, - (stdin), hf:NAME, or a folder of shards. Replaces
            data.paths of a recipe file.
        out: The run folder; may be s3://bucket/runs/NAME.
        show_batch: Print the inputs and labels of the first batch. The report contains them, too.
        show_recipe: Print every key of the recipe with its value and origin, without training.
    """
    if show_recipe:
        from trivium.workflows.show_recipe import show_recipe as print_recipe

        typer.echo(
            print_recipe(
                recipe or "",
                data or (),
                format_overrides(data_options, changes, no_verify=no_verify),
            )
        )
        return
    advice = (
        "name a preset or a recipe, such as `trivium pretrain bert-small --data my_texts/`; "
        "`trivium presets` lists them."
    )
    resumed: bool | Literal["auto"] = "auto" if auto_resume else resume
    out = choose_run_folder(recipe, out, advice, resume=resumed, overwrite=overwrite)
    with exit_on_interrupt():
        from trivium.explain.show_batch import ShowBatch
        from trivium.workflows.training import pretrain as run_pretraining

    run_pretraining(
        recipe or "",
        data=PathList(data or ()),
        out=out,
        changes=format_overrides(data_options, changes, no_verify=no_verify),
        resume=resumed,
        overwrite=overwrite,
        callbacks=[ShowBatch(out)] if show_batch else [],
    )
