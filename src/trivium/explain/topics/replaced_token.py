"""Explanation of replaced-token detection (ELECTRA, DeBERTa v3), applied to the reader's text."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from trivium.data.batch import RowBatch
from trivium.errors import TriviumError
from trivium.explain.batch_parts import batch_to_dict, build_batch_parts, encode_rows, prepare_batch
from trivium.explain.page import Formula, Page, Table, get_text
from trivium.model_loading import load
from trivium.models.electra import GeneratorAndDiscriminator, build_with_generator
from trivium.objectives.replaced_token import ReplacedToken
from trivium.objectives.tensor_batch import to_device
from trivium.presets import presets
from trivium.text.roles import BERT_SPECIALS
from trivium.text.vocabulary import Vocabulary

_LABELS = get_text("replaced_token.original"), get_text("replaced_token.replaced")
_COLUMNS = ("position", "text", "generator_reads", "discriminator_reads", "label", "p_replaced")
_STAND_IN = get_text("replaced_token.stand_ins_note")
_NOTE = get_text("replaced_token.note")


@torch.inference_mode()
def explain(
    text: list[str] | None = None,
    *,
    model: str | None = None,
    probability: float = 0.3,
    seed: int = 8,
) -> Page:
    """Fill masks with a generator, and detect with a discriminator which tokens were replaced.

    Args:
        text: The texts; each text is a row.
        model: A finished run of ELECTRA or DeBERTa v3. Default: untrained models, whose tokens are
            words.
        probability: Fraction of tokens to mask. ELECTRA uses 0.15; a short text needs more.
        seed: Random seed for masks and sampled tokens.
    """
    objective = ReplacedToken.from_tree({"probability": probability})
    chosen, rows = encode_rows(text or ["the chef cooked the meal"], model, BERT_SPECIALS)
    both = (
        _build_untrained_models(chosen.vocabulary, rows)
        if model is None
        else _load_trained_models(model)
    )
    host = prepare_batch(objective, chosen, rows, seed=seed)
    batch = to_device(host, torch.device("cpu"))
    corrupted, sums = objective.corrupt(both, batch), objective.loss(both, batch)  # type: ignore[arg-type]
    states = both.discriminator(**(batch.inputs | {"input_ids": corrupted.shown}))
    chances = both.discriminator.logits(states, head="replaced-token")[..., 0].sigmoid()
    names, parts, shown = chosen.readable_tokens, build_batch_parts(objective, host, chosen), []
    for row, n in enumerate(rows.lengths):
        ids = (each[row, :n].tolist() for each in (rows.input_ids, host.input_ids, corrupted.shown))
        texts = [[names[index] for index in each] for each in ids]
        labels, p = (each[row, :n].tolist() for each in (corrupted.replaced, chances))
        shown.append({"tokens": texts[-1], "replaced": labels, "probabilities": p})
        lines = enumerate(zip(*texts, [_LABELS[label] for label in labels], p))
        caption = get_text("replaced_token.row_by_position", row=row + 1)
        columns = [get_text(f"replaced_token.{name}") for name in _COLUMNS]
        parts.append(Table(columns, [[i, *one] for i, one in lines], caption))
    counts = objective.loss_denominators(host)
    g, d = (sums[name].item() / max(1, count) for name, count in counts.items())
    formula = f"L = L_generator + 50 L_discriminator = {g:.3f} + 50 * {d:.3f} = {g + 50 * d:.2f}"
    parts += [Formula(formula), _NOTE] if model else [Formula(formula), _STAND_IN, _NOTE]
    data = batch_to_dict(objective, host, chosen) | {"discriminator": shown, "losses": [g, d]}
    return Page(get_text("replaced_token.replaced_token_detection"), parts, data)


def _build_untrained_models(vocabulary: Vocabulary, rows: RowBatch) -> GeneratorAndDiscriminator:
    """Build an untrained generator and an untrained discriminator for the example of the topic.

    The generator predicts tokens according to their frequencies in the rows.
    """
    both = build_with_generator(presets["electra-tiny"].replace(vocab_size=vocabulary.size))  # type: ignore[arg-type]
    counts = np.bincount(rows.input_ids.ravel(), minlength=vocabulary.size)
    counts[vocabulary.is_special] = 0
    both.generator.get_parameter("heads.mlm.dense.norm.weight").zero_()  # logits are the bias
    both.generator.get_parameter("heads.mlm.bias").copy_(torch.from_numpy(counts).log())
    return both.eval()


def _load_trained_models(run: str) -> GeneratorAndDiscriminator:
    """Load the generator and the discriminator of a finished run.

    Each model has its own copy of the token embeddings, even if they were shared in training.
    """
    if not Path(run, "generator").is_dir():
        raise TriviumError(
            f"{run} has no generator: give a finished run of an ELECTRA, such as electra-mini."
        )
    both = [load(path, device="cpu").module for path in (f"{run}/generator", run)]
    return GeneratorAndDiscriminator(*both, "gradient-disentangled").eval()  # type: ignore[arg-type]
