"""Options of commands that write: in which form the weights and layers are kept."""

from __future__ import annotations

from typing import Annotated

import typer

from trivium.language_model.loading import Precision, Weights

QuantizeOption = Annotated[
    Weights | None,
    typer.Option(help="Keep weights in 8 or 4 bits: faster on a CPU.", show_default=False),
]
CompileOption = Annotated[
    bool,
    typer.Option(
        "--compile",
        help="Compile the decoder for this CPU: a token takes a fifth to a half less time. Takes "
        "20 to 130 s the first time, 3 to 5 later, and needs a C++ compiler.",
    ),
]
DtypeOption = Annotated[
    Precision | None, typer.Option(help="Precision of the weights; as stored, unless given.")
]
