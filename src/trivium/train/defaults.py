"""Default values that depend on the model and the data: learning rates, sizes and budgets.

Pretraining: the learning rates are for the default batch size. They were tuned on small models and
follow the published values of large models. 2e-3 at width 256 falls with width^-0.75 to 3e-4 at
LLaMA-7B's width of 4096 and to 1.5e-4 at 65B's 8192. Post-norm stacks use half of this rate (Xiong
et al. 2020). Recurrent and n-gram models use three times the rate, an Elman network, which has no
gates, half of that.

Presets in sizes that no paper describes (`presets.is_own_size`) use the settings with which they
learn fastest. Other presets use the settings of their papers. The recipe key `defaults` overrides
this choice. Pairs of runs in benchmarks/LOG.md show which settings are faster: the fast
initialization of models that have one (with an encoder), masking 30 % of the tokens, and Muon for
decoders. Encoders with the fast initialization learn more with AdamW.

In our own sizes, BART and models with sinusoidal positions use the fast initialization for
fine-tuning, too.

Encoder-decoders of every size use Muon for their matrices. Under AdamW, the direction that all
token vectors have in common outgrows all other directions while token frequencies are learned, and
the encoder's outputs become the same for every text. Their token embeddings, which stay with AdamW,
then use a higher learning rate.

Fine-tuning: the peak learning rate is 5e-5 at BERT-base's width of 768 (Devlin et al. 2018,
appendix A.3: 2e-5 to 5e-5) and is higher for narrower models. Pre-norm blocks tolerate higher
rates, narrow ones most: at width 256, 1e-3 and 2e-3 reach far better results than 1.5e-4, and
ModernBERT-base was tuned at 8e-5 (Warner et al. 2024, appendix). LoRA uses ten times the rate (Hu
et al. 2021, table 9), limited to the rate of pretraining. New weights use half the rate of
pretraining. Small data sets are repeated for enough epochs to reach a few hundred steps.
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
# With a budget in minutes: the bytes of text per minute that a new tokenizer is trained on. This is
# more than a small model reads in a minute. Slow kinds of tokenizers get at most this fraction of
# the budget for their training.
_SAMPLE_BYTES_PER_MINUTE, _SAMPLE_SHARE = 5_000_000, 0.1
# Labelled examples are evaluated every epoch, but at least and at most after these numbers of
# steps. Evaluations that generate text use this number of examples.
_SHORTEST_EPOCH, _LONGEST_EPOCH, _GENERATED_EXAMPLES = 10, 500, 400
# The most steps between evaluations of a policy. A step samples as many texts as an evaluation.
_POLICY_STEPS = 25
# Pairs (maximum number of labelled examples, epochs), and the epochs for more examples.
_EPOCHS = ((500, 20.0), (3_000, 10.0), (30_000, 5.0))
_FEWEST_EPOCHS = 3.0
# The learning rate of a LoRA adapter, divided by that of all weights.
_ADAPTER_RATE = 10.0
# The input length of a model that was fine-tuned on short examples is at least this.
SHORT_EXAMPLE = 512
# The maximum length for a model with relative position biases, which need quadratic memory.
_LONGEST_BIASED = 1024


def vocabulary_size(spec: Spec, corpus_bytes: int) -> int:
    """Return the vocabulary size for this amount of text: at most the preset's own size."""
    fitting = (size for limit, size in _VOCABULARIES if corpus_bytes <= limit)
    return min(spec.vocab_size, next(fitting, _LARGEST_VOCABULARY))


def padded_vocabulary_size(vocab_size: int) -> int:
    """Return the number of rows of the token embedding: a multiple of 64."""
    return -(-vocab_size // 64) * 64


def with_vocabularies(spec: Spec, size: int, source_size: int | None = None) -> Spec:
    """Return the spec with the vocabulary sizes of the tokenizers.

    If `source_size` is None, the source and the target share one vocabulary.
    """
    changes: dict[str, int | None] = {"vocab_size": padded_vocabulary_size(size)}
    if hasattr(spec, "source_vocab_size"):
        changes["source_vocab_size"] = source_size and padded_vocabulary_size(source_size)
    return spec.replace(**changes)


def sample_bytes(kind: type[TokenizerConfig], minutes: float) -> int:
    """Return the number of bytes to train a tokenizer on, for a run with a budget in minutes."""
    fitting = _SAMPLE_SHARE * 60.0 / kind.seconds_per_mb * 1e6
    per_minute = min(_SAMPLE_BYTES_PER_MINUTE, fitting)
    return round(min(kind.model_fields["sample_bytes"].default, max(minutes, 1.0) * per_minute))


def choose_initialization(spec: TransformerSpec) -> Literal["published", "fast"]:
    """Return "fast" if the model has a fast initialization, else "published"."""
    try:
        with_fast_initialization(spec)
    except SpecError:
        return "published"
    return "fast"


def choose_optimizer(spec: Spec, *, fast: bool) -> Literal["adamw", "muon"]:
    """Return the default optimizer for new weights; `fast` means that fast settings are used."""
    if spec.family == "encoder-decoder" or (fast and spec.family == "decoder-only"):
        return "muon"
    return "adamw"


def pretraining_rate(spec: Spec) -> float:
    """Return AdamW's peak learning rate for new weights, by the model's kind, width and norms."""
    if not spec.stacks:
        elman = isinstance(spec, RNNSpec) and spec.cell.startswith("elman")
        rate = 6e-3 * (256 / max(1, spec.d_model)) ** 0.5 * (0.5 if elman else 1.0)
        # The layers from characters to token vectors have no norms: higher rates let vectors grow.
        return rate * (0.25 if _reads_characters(spec) else 1.0)
    return 2e-3 * (256 / spec.d_model) ** 0.75 * (0.5 if _has_post_norm(spec) else 1.0)


def embedding_scale(spec: Spec) -> float:
    """Return the factor for the learning rate of token embeddings if Muon trains the matrices.

    The factor is 1 at width 256. An AdamW step changes every element of a token's vector by about
    the learning rate. The elements have the same size at every width, since a norm follows the
    embedding. Hence one learning rate suits all widths, and the factor cancels the width^-0.75 with
    which the rate of other weights falls. Measured at widths 128 to 512 (benchmarks/LOG.md) for a
    decoder with untied embeddings.
    """
    return (spec.d_model / 256) ** 0.75 if spec.stacks else 1.0


def finetuning_learning_rate(spec: Spec, *, new_weights: bool, adapted: bool) -> float:
    """Return AdamW's peak learning rate for training on labelled examples.

    `new_weights` is whether the weights are not pretrained, and `adapted` whether a LoRA adapter is
    trained.
    """
    if new_weights or not spec.stacks:
        trained = 0.4 if _reads_characters(spec) else 0.1
        return pretraining_rate(spec) * (0.5 if new_weights else trained)
    if _has_post_norm(spec):
        rate = 5e-5 * (768 / spec.d_model)
    else:
        rate = max(1e-3 * (256 / spec.d_model) ** 2, 2e-5)
    return min(rate * (_ADAPTER_RATE if adapted else 1.0), pretraining_rate(spec))


def _task_learning_rate(task: LabelledObjective, rate: float, *, adapted: bool) -> float:
    """Return the learning rate for a task, given the general rate of fine-tuning.

    `adapted` is whether a LoRA adapter is trained.
    """
    advice = task.advice()
    lowest, highest = (bound * (_ADAPTER_RATE if adapted else 1.0) for bound in advice.lr_range)
    return min(max(rate * advice.lr_factor, lowest), highest)


def _reads_characters(spec: Spec) -> bool:
    """Return whether a model builds its token vectors from characters."""
    return isinstance(spec, RNNSpec) and spec.characters is not None


def batch_tokens(spec: Spec, length: int) -> int:
    """Return the number of tokens per step: about 8 per unit of model width, in whole rows."""
    rows = max(4, round(8 * spec.d_model / length))
    return rows * length


def max_example_length(recipe: Recipe, spec: Spec) -> int:
    """Return the maximum number of tokens of an example, limited by the task and the model."""
    longest = max(task.advice().longest for task in _labelled_objectives(recipe))
    if spec.has_encoder_position_bias:
        longest = min(longest, _LONGEST_BIASED)
    longest = recipe.data.length or longest
    return min(longest, spec.max_length or longest)


def complete(recipe: Recipe, spec: Spec, *, num_examples: int = 0) -> Recipe:
    """Return the recipe with a value for every number that was left open.

    Args:
        recipe: the recipe as loaded, in which the kinds of all components are set.
        spec: the spec of the model.
        num_examples: the number of labelled training examples.
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
        train |= _choose_labelled_settings(recipe, num_examples, new=new)
    train["eval_every"] = train["eval_every"] or _EVAL_EVERY
    train["save_every"] = train["save_every"] or _SAVE_EVERY
    if recipe.train.budget is None and not labelled:
        train |= {"epochs": 1.0} if spec.counts else {"steps": _STEPS}
    if labelled:
        adapted = recipe.adapter.rank > 0
        rate = finetuning_learning_rate(spec, new_weights=new, adapted=adapted)
        rate = min(
            _task_learning_rate(task, rate, adapted=adapted)
            for task in _labelled_objectives(recipe)
        )
    else:
        # Trained weights would forget at the learning rate of new weights.
        rate = pretraining_rate(spec) * (1.0 if new else 0.1)
    scale = embedding_scale(spec) if new and not labelled else 1.0
    optimizer, schedule = recipe.optimizer.complete(rate, scale), recipe.schedule
    if schedule.warmup is None:
        # 100 steps, or 5 % of a run that is short or whose number of steps is not known.
        long = (train["steps"] or 0) >= 2000
        schedule = schedule.replace(warmup=0.1 if labelled else 100 if long else 0.05)
    return recipe.replace(
        model=model, data=data, train=train, optimizer=optimizer, schedule=schedule
    )


def _choose_labelled_settings(recipe: Recipe, num_examples: int, *, new: bool) -> dict[str, Any]:
    """Return the values of `[train]` that depend on the number of labelled examples."""
    task, section = _labelled_objectives(recipe)[0], recipe.train
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


def _labelled_objectives(recipe: Recipe) -> list[LabelledObjective]:
    """Return the objectives of a recipe that use labelled examples."""
    return [one for one in recipe.objectives if isinstance(one, LabelledObjective)]


def eval_examples(recipe: Recipe) -> int | None:
    """Return the number of validation examples per source and evaluation; None for all of them."""
    generates = any(task.generates for task in _labelled_objectives(recipe))
    generated = _GENERATED_EXAMPLES if generates else None
    return recipe.train.eval_examples or generated


def dropout(recipe: Recipe) -> float:
    """Return the dropout rate: the value in the recipe, or a default.

    The default is 0 in pretraining and if `decays_over_epochs`, otherwise that of the task. Without
    dropout, a run that repeats its text only a few times learns faster (Geiping and Goldstein
    2022).
    """
    if recipe.model.dropout is not None:
        return recipe.model.dropout
    if decays_over_epochs(recipe):
        return 0.0
    return min((task.advice().dropout for task in _labelled_objectives(recipe)), default=0.0)


def decays_over_epochs(recipe: Recipe) -> bool:
    """Return whether a higher weight decay from the second epoch on replaces dropout.

    For new Transformers of our sizes, this regularizes better if the labels of a row are the same
    in every epoch, and worse if every epoch has new masks (benchmarks/LOG.md). It is not used with
    a `layer_decay`, since lower layers would then forget faster than they learn.
    """
    preset, optimizer = recipe.model.preset or "", recipe.optimizer
    own = is_own_size(preset) and recipe.defaults != "published" and bool(presets[preset].stacks)
    decay_is_open = optimizer.weight_decay is None and optimizer.layer_decay == 1.0
    advised = recipe.objectives[0].advice().multi_epoch_decay
    return own and decay_is_open and not recipe.mix and advised


def _has_post_norm(spec: Spec) -> bool:
    """Return whether any layer of the model has a post-norm."""
    return any("post_norm" in layer.norms for stack in spec.stacks for layer in stack.every_layer)


def row_length(recipe: Recipe) -> int:
    """Return the number of tokens per row of text."""
    return recipe.data.length or _LENGTH
