"""`trivium pretrain`: raw text to a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trivium.errors import RecipeError
from trivium.workflows.pretrain import pretrain as run_pretraining

app = typer.Typer(add_completion=False)

_EPILOG = """Examples:

  trivium pretrain bert-small --data my_texts/ --out runs/mine

  trivium pretrain llama-mini --data book.txt --set train.minutes=10 --set data.length=256

  trivium pretrain textbook-bert --data wiki.txt --out runs/textbook

  trivium pretrain bert-mini --data my_texts/ --set objective.kind=masked+nsp

  trivium pretrain electra-mini --data my_texts/ --set objective.kind=replaced-token

  trivium pretrain gpt2-mini --out runs/mixed
  --set 'data.mix=[{paths=["wiki/"], weight=3}, {paths=["code/"], weight=1}]'

  trivium pretrain t5-mini --data my_texts/
  --set 'objective.mix=[{kind="span-corruption", share=3}, {kind="prefix-lm"}]'

  trivium pretrain hf/bert-base --data my_texts/ --out runs/continued

  trivium pretrain --resume --out runs/mine

  trivium pretrain --resume --out runs/mine --set train.steps=4000
"""


@app.command(epilog=_EPILOG)
def pretrain(
    recipe: Annotated[
        str | None,
        typer.Argument(
            metavar="PRESET_OR_RECIPE",
            help="A preset (see `trivium presets`), a shipped recipe, a TOML file, or the folder "
            "of a model to train on, ours or Hugging Face's.",
        ),
    ] = None,
    data: Annotated[
        list[str] | None,
        typer.Option(
            help="Text: files, folders, globs, - (stdin), hf:NAME, or a folder of shards."
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The run folder; runs/PRESET_OR_RECIPE unless given.")
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a key of the recipe."),
    ] = None,
    errors: Annotated[
        str | None, typer.Option(help="At invalid UTF-8: strict (stop) or replace (go on).")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run in --out, exactly.")
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the run that --out holds.")
    ] = False,
) -> None:
    """Train a model from raw text: tokenizer, shards, training, report.

    What is asked of the model is --set objective.kind=...: masked, masked+nsp, masked+order or
    replaced-token for encoders; causal or prefix-lm for decoders; span-corruption, denoising or
    prefix-lm for both together; bidirectional-lm for RNNs that read two ways. Several objectives
    stand in objective.mix, several sources of text in data.mix. docs/recipe.md has every key.

    Ctrl-C saves and stops; --resume goes on as if nothing had happened. The recipe that a run
    writes to its folder is complete: start there to change things.
    """
    if recipe is None and not resume:
        raise RecipeError(
            "name a preset or a recipe, such as `trivium pretrain bert-small --data my_texts/`; "
            "`trivium presets` lists them."
        )
    if resume and (data or overwrite):
        raise RecipeError("--resume takes text and recipe from the run: leave out the others.")
    folder = out or Path("runs") / Path(recipe or "").stem
    if out is None and recipe is None:
        raise RecipeError("--resume needs to know which run: give --out RUN.")
    if errors is not None:
        changes = [*(changes or ()), f"data.errors={errors}"]
    run_pretraining(
        recipe or "",
        data=data or (),
        out=folder,
        changes=changes or (),
        resume=resume,
        overwrite=overwrite,
    )
