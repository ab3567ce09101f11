"""Numbers that a recipe leaves open, decided from the model and the data.

Pretraining: learning rates are for the default batch; they were tuned on small models and follow
the published tables of large ones: 2e-3 at width 256 falls with width^-0.75 to 3e-4 at LLaMA-7B's
4096 and 1.5e-4 at 65B's 8192. Post-norm stacks take half of it (Xiong et al. 2020). Recurrent and
n-gram models take three times as much, an Elman network, which has no gates, half of that.

Sizes that no paper names (`presets.is_own_size`) start and train on text as learns fastest, others
as their papers say; `defaults` of a recipe chooses. Faster are, by pairs of runs in
benchmarks/LOG.md: the fast initialization where there is one (with an encoder), 30 % of the
tokens masked, and Muon for decoders; encoders with their fast initialization learn more with AdamW.

BART and models with sinusoids, of our sizes, have the fast initialization in fine-tuning, too.

Encoder-decoders of every size take Muon for their matrices: under AdamW the direction that every
token has in common outgrows all others while token frequencies are learned, and the encoder's
outputs become the same for every text. Their token embeddings, which stay with AdamW, then take
larger steps.

Fine-tuning: the peak learning rate is 5e-5 at BERT-base's width of 768 (Devlin et al. 2018,
appendix A.3: 2e-5 to 5e-5) and grows as models get narrower. Pre-norm blocks bear more, narrow
ones most: at 256, 1e-3 and 2e-3 end far better than 1.5e-4, and ModernBERT-base was tuned at 8e-5
(Warner et al. 2024, appendix). LoRA takes ten times as much (Hu et al. 2021, table 9), at most
pretraining's rate; new weights take half of that. Small data is seen often enough for some
hundred steps.
"""

from __future__ import annotations

from typing import Any, Literal

from trivium.errors import SpecError
from trivium.models.base_model import Spec
from trivium.models.initialization import with_fast_initialization
from trivium.models.rnn import RNNSpec
from trivium.models.transformer import TransformerSpec
from trivium.objectives import LabelledObjective
from trivium.presets import is_own_size, presets
from trivium.text import TokenizerConfig
from trivium.train.recipe import Recipe

_STEPS, _EVAL_EVERY, _SAVE_EVERY, _LENGTH = 2000, 200, 500, 128
_VOCABULARIES = ((50_000_000, 8_192), (500_000_000, 16_384))
_LARGEST_VOCABULARY = 32_768
# Text that a new tokenizer is trained on, per minute of a budget in minutes: more than a small
# model reads in that time, and of a slow kind what takes a tenth of it.
_SAMPLE_BYTES_PER_MINUTE, _SAMPLE_SHARE = 5_000_000, 0.1
# Labelled examples are evaluated every epoch, within these bounds in steps; text that is generated
# for an evaluation is that of so many examples.
_SHORTEST_EPOCH, _LONGEST_EPOCH, _GENERATED_EXAMPLES = 10, 500, 400
# A step of a policy draws as many texts as an evaluation: these are more frequent.
_POLICY_STEPS = 25
# Epochs for at most so many labelled examples, and for more.
_EPOCHS = ((500, 20.0), (3_000, 10.0), (30_000, 5.0))
_FEWEST_EPOCHS = 3.0
# The learning rate of a LoRA adapter, divided by that of all weights.
_ADAPTER_RATE = 10.0
# A model that was trained on short examples reads as many tokens at once.
SHORT_EXAMPLE = 512
# Of a model whose attention has relative biases, which need quadratic memory.
_LONGEST_BIASED = 1024


def vocabulary_size(spec: Spec, corpus_bytes: int) -> int:
    """Entries worth learning from so much text: never more than the preset's own."""
    fitting = (size for limit, size in _VOCABULARIES if corpus_bytes <= limit)
    return min(spec.vocab_size, next(fitting, _LARGEST_VOCABULARY))


def embedding_rows(vocab_size: int) -> int:
    """Rows of a table of token embeddings: a multiple of 64."""
    return -(-vocab_size // 64) * 64


def with_vocabularies(spec: Spec, size: int, source_size: int | None = None) -> Spec:
    """Return the spec for tokenizers of these sizes; without `source_size` both sides share one."""
    changes: dict[str, int | None] = {"vocab_size": embedding_rows(size)}
    if hasattr(spec, "source_vocab_size"):
        changes["source_vocab_size"] = source_size and embedding_rows(source_size)
    return spec.replace(**changes)


def sample_bytes(kind: type[TokenizerConfig], minutes: float) -> int:
    """Text to train a tokenizer of a kind on, where the budget of the run is in minutes."""
    fitting = _SAMPLE_SHARE * 60.0 / kind.seconds_per_mb * 1e6
    per_minute = min(_SAMPLE_BYTES_PER_MINUTE, fitting)
    return round(min(kind.model_fields["sample_bytes"].default, max(minutes, 1.0) * per_minute))


def fastest_initialization(spec: TransformerSpec) -> Literal["published", "fast"]:
    """Return "fast" where the model has a fast initialization, else "published"."""
    try:
        with_fast_initialization(spec)
    except SpecError:
        return "published"
    return "fast"


def optimizer_kind(spec: Spec, *, fast: bool) -> Literal["adamw", "muon"]:
    """The optimizer of new weights; `fast`: of those that train as learns fastest."""
    if spec.family == "encoder-decoder" or (fast and spec.family == "decoder-only"):
        return "muon"
    return "adamw"


def pretraining_rate(spec: Spec) -> float:
    """The peak learning rate of AdamW for new weights of this width and norm order."""
    if not spec.stacks:
        elman = isinstance(spec, RNNSpec) and spec.cell.startswith("elman")
        rate = 6e-3 * (256 / max(1, spec.d_model)) ** 0.5 * (0.5 if elman else 1.0)
        # The layers between characters and token vectors have no norms: vectors would grow.
        return rate * (0.25 if _reads_characters(spec) else 1.0)
    return 2e-3 * (256 / spec.d_model) ** 0.75 * (0.5 if _is_post_norm(spec) else 1.0)


def embedding_scale(spec: Spec) -> float:
    """What the rate of token embeddings beside Muon is multiplied by, 1 at width 256.

    A step of AdamW changes each number of a token's vector by the rate. The numbers have the same
    size at every width, since a norm reads the vector, so that one rate suits all, where the rate
    of other weights falls with width^-0.75. Measured at widths 128 to 512 (benchmarks/LOG.md), of
    a decoder whose output has a table of its own.
    """
    return (spec.d_model / 256) ** 0.75 if spec.stacks else 1.0


def finetuning_rate(spec: Spec, *, new_weights: bool, adapted: bool) -> float:
    """The peak learning rate of AdamW on labelled examples."""
    if new_weights or not spec.stacks:
        trained = 0.4 if _reads_characters(spec) else 0.1
        return pretraining_rate(spec) * (0.5 if new_weights else trained)
    if _is_post_norm(spec):
        rate = 5e-5 * (768 / spec.d_model)
    else:
        rate = max(1e-3 * (256 / spec.d_model) ** 2, 2e-5)
    return min(rate * (_ADAPTER_RATE if adapted else 1.0), pretraining_rate(spec))


def _task_rate(task: LabelledObjective, rate: float, *, adapted: bool) -> float:
    """Return the default rate of a task, where fine-tuning in general would take `rate`."""
    advice = task.advice()
    lowest, highest = (bound * (_ADAPTER_RATE if adapted else 1.0) for bound in advice.lr_range)
    return min(max(rate * advice.lr_factor, lowest), highest)


def _reads_characters(spec: Spec) -> bool:
    return isinstance(spec, RNNSpec) and spec.characters is not None


def batch_tokens(spec: Spec, length: int) -> int:
    """Tokens per step: 8 for each unit of width, in whole rows."""
    rows = max(4, round(8 * spec.d_model / length))
    return rows * length


def example_length(recipe: Recipe, spec: Spec) -> int:
    """Return how many tokens of an example are read at once: all, up to a limit of the task."""
    longest = max(task.advice().longest for task in _tasks(recipe))
    if spec.has_encoder_position_bias:
        longest = min(longest, _LONGEST_BIASED)
    longest = recipe.data.length or longest
    return min(longest, spec.max_length or longest)


def complete(recipe: Recipe, spec: Spec, *, num_examples: int = 0) -> Recipe:
    """The recipe with every open number decided.

    Args:
        recipe: as loaded, with all kinds.
        spec: of the model.
        num_examples: labelled training examples.
    """
    new, labelled = not recipe.model.starts_from_weights, recipe.labelled
    train: dict[str, Any] = dict(recipe.train)
    model = recipe.model.replace(dropout=dropout(recipe))
    data = recipe.data
    if not all(objective.labelled for objective in recipe.objectives):
        length = row_length(recipe)
        data = data.replace(length=length)
        train["batch_tokens"] = recipe.train.batch_tokens or batch_tokens(spec, length)
    if labelled:
        train |= _labelled_train(recipe, num_examples, new=new)
    train["eval_every"] = train["eval_every"] or _EVAL_EVERY
    train["save_every"] = train["save_every"] or _SAVE_EVERY
    if recipe.train.budget is None and not labelled:
        train |= {"epochs": 1.0} if spec.counts else {"steps": _STEPS}
    if labelled:
        adapted = recipe.adapter.rank > 0
        rate = finetuning_rate(spec, new_weights=new, adapted=adapted)
        rate = min(_task_rate(task, rate, adapted=adapted) for task in _tasks(recipe))
    else:
        # Trained weights would forget at the rate of new ones.
        rate = pretraining_rate(spec) * (1.0 if new else 0.1)
    scale = embedding_scale(spec) if new and not labelled else 1.0
    optimizer, schedule = recipe.optimizer.complete(rate, scale), recipe.schedule
    if schedule.warmup is None:
        # 100 steps; a twentieth of a shorter run, or of one whose steps are not known.
        long = (train["steps"] or 0) >= 2000
        schedule = schedule.replace(warmup=0.1 if labelled else 100 if long else 0.05)
    return recipe.replace(
        model=model, data=data, train=train, optimizer=optimizer, schedule=schedule
    )


def _labelled_train(recipe: Recipe, num_examples: int, *, new: bool) -> dict[str, Any]:
    """Keys of `[train]` that follow from the number of labelled examples."""
    task, section = _tasks(recipe)[0], recipe.train
    advice = task.advice()
    batch = section.batch_examples or max(1, min(advice.batch_examples, num_examples))
    longest = _POLICY_STEPS if task.rolls_out else _LONGEST_EPOCH
    epoch = min(longest, max(_SHORTEST_EPOCH, num_examples // batch))
    chosen: dict[str, Any] = {"batch_examples": batch, "eval_every": section.eval_every or epoch}
    chosen["save_every"] = section.save_every or chosen["eval_every"]
    if section.budget is None:
        epochs = next((n for limit, n in _EPOCHS if num_examples <= limit), _FEWEST_EPOCHS)
        chosen["epochs"] = advice.epochs or epochs * (2.0 if new else 1.0)
    return chosen


def _tasks(recipe: Recipe) -> list[LabelledObjective]:
    return [one for one in recipe.objectives if isinstance(one, LabelledObjective)]


def eval_examples(recipe: Recipe) -> int | None:
    """Held-out examples of each source per evaluation during training; None for all."""
    generates = any(task.generates for task in _tasks(recipe))
    generated = _GENERATED_EXAMPLES if generates else None
    return recipe.train.eval_examples or generated


def dropout(recipe: Recipe) -> float:
    """As set, else 0 in pretraining and beside a decay by passes, and that of the task elsewhere.

    A run that sees its text a few times learns faster without (Geiping and Goldstein 2022).
    """
    if recipe.model.dropout is not None:
        return recipe.model.dropout
    if decays_over_epochs(recipe):
        return 0.0
    return min((task.advice().dropout for task in _tasks(recipe)), default=0.0)


def decays_over_epochs(recipe: Recipe) -> bool:
    """Whether faster decay from the second pass on, not dropout, is to prevent overfitting.

    New Transformers of our sizes learned the rows whose labels are the same in every pass better
    so, those with new masks in every pass worse (benchmarks/LOG.md). With a layer_decay lower
    layers would forget faster than they learn.
    """
    preset, optimizer = recipe.model.preset or "", recipe.optimizer
    own = is_own_size(preset) and recipe.defaults != "published" and bool(presets[preset].stacks)
    decay_is_open = optimizer.weight_decay is None and optimizer.layer_decay == 1.0
    advised = recipe.objectives[0].advice().multi_epoch_decay
    return own and decay_is_open and not recipe.mix and advised


def _is_post_norm(spec: Spec) -> bool:
    return any("post_norm" in layer.norms for stack in spec.stacks for layer in stack.every_layer)


def row_length(recipe: Recipe) -> int:
    """Tokens of a row of text."""
    return recipe.data.length or _LENGTH
