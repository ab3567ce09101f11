"""Default values that depend on the model and the data: learning rates, sizes and budgets.

Pretraining: the learning rates are for the default batch size. They were tuned on small models and
follow the published values of large models. The peak is 2e-3 at width 256 and falls with
width^-0.75, to 2.5e-4 at width 4096 (LLaMA-7B: 3e-4) and 1.5e-4 at width 8192 (LLaMA-65B: 1.5e-4).
Post-norm stacks use half of this rate (Xiong et al. 2020). Recurrent and n-gram models use three
times the rate at width 256. Elman networks use half the rate of other recurrent models, since they
have no gates.

Presets in sizes that no paper describes (`presets.is_own_size`) use the settings that make them
learn fastest. Other presets use the settings of their papers. The recipe key `defaults` overrides
this choice. In the pairs of runs in benchmarks/LOG.md, these settings learn faster: masking 30 % of
the tokens, Muon for decoders, and the fast initialization for models that have one, which are most
models with an encoder. Encoders with the fast initialization learn more with AdamW than with Muon.

In our own sizes, BART and models with sinusoidal positions use the fast initialization for
fine-tuning, too.

Encoder-decoders of every size use Muon for their matrices. Under AdamW, the direction that all
token vectors have in common outgrows all other directions while token frequencies are learned, and
the encoder's outputs become the same for every text. AdamW still trains the token embeddings of
these models, with a higher learning rate.

Fine-tuning: the peak learning rate is 5e-5 at BERT-base's width of 768 (Devlin et al. 2018,
appendix A.3: 2e-5 to 5e-5) and is higher for narrower models. Pre-norm models tolerate higher
rates, especially if they are narrow: at width 256, 1e-3 and 2e-3 reach far better results than
1.5e-4, and ModernBERT-base was tuned at 8e-5 (Warner et al. 2024, appendix). LoRA uses ten times
the rate of full fine-tuning (Hu et al. 2021, table 9), but at most the rate of pretraining. Models
trained from scratch on labelled examples use half the rate of pretraining. Small data sets are
repeated for enough epochs to reach a few hundred steps.
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
# With a budget in minutes, a new tokenizer is trained on this many bytes of text per minute, which
# is more than a small model reads in a minute. Training a slow kind of tokenizer takes at most this
# fraction of the budget.
_SAMPLE_BYTES_PER_MINUTE, _SAMPLE_SHARE = 5_000_000, 0.1
# With labelled examples, an evaluation follows every epoch, but the interval is limited to this
# range of steps. Evaluations that generate text use this number of examples.
_SHORTEST_EPOCH, _LONGEST_EPOCH, _GENERATED_EXAMPLES = 10, 500, 400
# The most steps between evaluations of a policy. A step samples as many texts as an evaluation.
_POLICY_STEPS = 25
# Pairs (maximum number of labelled examples, epochs), and the epochs for more examples.
_EPOCHS = ((500, 20.0), (3_000, 10.0), (30_000, 5.0))
_FEWEST_EPOCHS = 3.0
# The learning rate of a LoRA adapter, divided by that of full fine-tuning.
_ADAPTER_RATE = 10.0
# The input length of a model that was fine-tuned on short examples is at least this.
SHORT_EXAMPLE = 512
# The maximum length for a model with relative position biases, which need quadratic memory.
_LONGEST_BIASED = 1024


def vocabulary_size(spec: Spec, corpus_bytes: int) -> int:
    """Return the vocabulary size of a new tokenizer, chosen by the size of the corpus.

    The result is at most the vocabulary size in the spec.
    """
    fitting = (size for limit, size in _VOCABULARIES if corpus_bytes <= limit)
    return min(spec.vocab_size, next(fitting, _LARGEST_VOCABULARY))


def pad_vocabulary_size(vocab_size: int) -> int:
    """Return the number of embedding rows: the vocabulary size, rounded up to a multiple of 64."""
    return -(-vocab_size // 64) * 64


def with_vocabulary_sizes(spec: Spec, vocab_size: int, source_size: int | None = None) -> Spec:
    """Return the spec with the vocabulary sizes of the tokenizers, padded to multiples of 64.

    If `source_size` is None, the source and the target share one vocabulary.
    """
    changes: dict[str, int | None] = {"vocab_size": pad_vocabulary_size(vocab_size)}
    if hasattr(spec, "source_vocab_size"):
        changes["source_vocab_size"] = source_size and pad_vocabulary_size(source_size)
    return spec.replace(**changes)


def choose_sample_bytes(kind: type[TokenizerConfig], minutes: float) -> int:
    """Return the number of bytes of text on which a new tokenizer is trained.

    A run with a short time budget uses less text. `kind` is the tokenizer type, and `minutes` is
    the time budget.
    """
    fitting = _SAMPLE_SHARE * 60.0 / kind.seconds_per_mb * 1e6
    per_minute = min(_SAMPLE_BYTES_PER_MINUTE, fitting)
    return round(min(kind.model_fields["sample_bytes"].default, max(minutes, 1.0) * per_minute))


def choose_initialization(spec: TransformerSpec) -> Literal["published", "fast"]:
    """Return "fast" if the model supports fast initialization, else "published"."""
    try:
        with_fast_initialization(spec)
    except SpecError:
        return "published"
    return "fast"


def choose_optimizer(spec: Spec, *, fast: bool) -> Literal["adamw", "muon"]:
    """Return the kind of the default optimizer for training from scratch.

    `fast` says whether the run uses the fast settings.
    """
    if spec.family == "encoder-decoder" or (fast and spec.family == "decoder-only"):
        return "muon"
    return "adamw"


def pretraining_learning_rate(spec: Spec) -> float:
    """Return AdamW's default peak learning rate for training from scratch.

    The rate depends on the architecture, the width, and whether blocks are post-norm.
    """
    if not spec.stacks:
        elman = isinstance(spec, RNNSpec) and spec.cell.startswith("elman")
        rate = 6e-3 * (256 / max(1, spec.d_model)) ** 0.5 * (0.5 if elman else 1.0)
        # The layers from characters to token vectors have no norms: higher rates let vectors grow.
        return rate * (0.25 if _reads_characters(spec) else 1.0)
    return 2e-3 * (256 / spec.d_model) ** 0.75 * (0.5 if _has_post_norm(spec) else 1.0)


def embedding_lr_scale(spec: Spec) -> float:
    """Return a factor that makes the learning rate of token embeddings the same at every width.

    Muon uses this factor for the token embeddings, which AdamW trains. The factor is 1 at width
    256. An AdamW step changes every element of a token embedding by about the learning rate. The
    elements have the same size at every width, since a norm follows the embedding. Hence one
    learning rate suits all widths. The factor cancels the width^-0.75 by which the learning rate of
    other weights falls. This was measured at widths 128 to 512 (benchmarks/LOG.md) for a decoder
    with untied embeddings.
    """
    return (spec.d_model / 256) ** 0.75 if spec.stacks else 1.0


def finetuning_learning_rate(spec: Spec, *, new_weights: bool, adapted: bool) -> float:
    """Return AdamW's default peak learning rate for training on labelled examples.

    `new_weights` says whether the model is trained from scratch, and `adapted` whether a LoRA
    adapter is trained.
    """
    if new_weights or not spec.stacks:
        trained = 0.4 if _reads_characters(spec) else 0.1
        return pretraining_learning_rate(spec) * (0.5 if new_weights else trained)
    if _has_post_norm(spec):
        rate = 5e-5 * (768 / spec.d_model)
    else:
        rate = max(1e-3 * (256 / spec.d_model) ** 2, 2e-5)
    return min(rate * (_ADAPTER_RATE if adapted else 1.0), pretraining_learning_rate(spec))


def _adjust_lr_to_task(task: LabelledObjective, lr: float, *, has_adapter: bool) -> float:
    """Multiply a learning rate by the task's factor and clamp it to the task's range.

    `lr` is the default learning rate for fine-tuning. If a LoRA adapter is trained (`has_adapter`),
    the range is higher.
    """
    advice = task.advice()
    lowest, highest = (bound * (_ADAPTER_RATE if has_adapter else 1.0) for bound in advice.lr_range)
    return min(max(lr * advice.lr_factor, lowest), highest)


def _reads_characters(spec: Spec) -> bool:
    """Return whether the model is an RNN that builds token vectors from characters."""
    return isinstance(spec, RNNSpec) and spec.characters is not None


def choose_batch_tokens(spec: Spec, length: int) -> int:
    """Return the default number of tokens per step, a multiple of the row length.

    The result is about 8 times the width of the model.
    """
    rows = max(4, round(8 * spec.d_model / length))
    return rows * length


def max_example_length(recipe: Recipe, spec: Spec) -> int:
    """Return the maximum number of tokens per labelled example.

    This is `data.length` if the recipe sets it, or else the default of the task. It is at most the
    context length of the model.
    """
    longest = max(task.advice().longest for task in _get_labelled_objectives(recipe))
    if spec.has_encoder_position_bias:
        longest = min(longest, _LONGEST_BIASED)
    longest = recipe.data.length or longest
    return min(longest, spec.max_length or longest)


def complete(recipe: Recipe, spec: Spec, *, num_examples: int = 0) -> Recipe:
    """Fill in all values of a recipe that depend on the model or the data. Returns the new recipe.

    Args:
        recipe: a loaded recipe, in which the kind of every component is set.
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
        train["batch_tokens"] = recipe.train.batch_tokens or choose_batch_tokens(spec, length)
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
            _adjust_lr_to_task(task, rate, has_adapter=adapted)
            for task in _get_labelled_objectives(recipe)
        )
    else:
        # Trained weights would forget at the learning rate of new weights.
        rate = pretraining_learning_rate(spec) * (1.0 if new else 0.1)
    scale = embedding_lr_scale(spec) if new and not labelled else 1.0
    optimizer, schedule = recipe.optimizer.with_default_learning_rates(rate, scale), recipe.schedule
    if schedule.warmup is None:
        # 100 steps, or 5 % of a run that is short or whose number of steps is not known.
        long = (train["steps"] or 0) >= 2000
        schedule = schedule.replace(warmup=0.1 if labelled else 100 if long else 0.05)
    return recipe.replace(
        model=model, data=data, train=train, optimizer=optimizer, schedule=schedule
    )


def _choose_labelled_settings(recipe: Recipe, num_examples: int, *, new: bool) -> dict[str, Any]:
    """Choose the values of `[train]` that depend on the number of labelled examples.

    These are the batch size, the evaluation and checkpoint intervals, and the number of epochs.
    `new` says whether the model is trained from scratch.
    """
    task, section = _get_labelled_objectives(recipe)[0], recipe.train
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


def _get_labelled_objectives(recipe: Recipe) -> list[LabelledObjective]:
    """Return the objectives of a recipe that train on labelled examples."""
    return [one for one in recipe.objectives if isinstance(one, LabelledObjective)]


def max_eval_examples(recipe: Recipe) -> int | None:
    """Return the maximum number of validation examples per source in each evaluation.

    Returns None if all validation examples are used.
    """
    generates = any(task.generates for task in _get_labelled_objectives(recipe))
    generated = _GENERATED_EXAMPLES if generates else None
    return recipe.train.eval_examples or generated


def dropout(recipe: Recipe) -> float:
    """Return the dropout rate that the recipe sets, or the default rate.

    The default is 0 for pretraining: without dropout, a run that repeats its text only a few times
    learns faster (Geiping and Goldstein 2022). It is also 0 for runs with multi-epoch weight decay
    (`decays_over_epochs`). For other runs on labelled examples, it is the default of the task.
    """
    if recipe.model.dropout is not None:
        return recipe.model.dropout
    if decays_over_epochs(recipe):
        return 0.0
    return min((task.advice().dropout for task in _get_labelled_objectives(recipe)), default=0.0)


def decays_over_epochs(recipe: Recipe) -> bool:
    """Return whether weight decay increases from the second epoch on, in place of dropout.

    For Transformers of our own sizes, this regularizes better than dropout if the labels of a row
    are the same in every epoch, and worse if every epoch has new masks (benchmarks/LOG.md). It is
    not used with layer-wise learning rate decay, since lower layers would then forget faster than
    they learn.
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
    """Return the number of tokens per row of text: `data.length`, or 128 by default."""
    return recipe.data.length or _LENGTH
