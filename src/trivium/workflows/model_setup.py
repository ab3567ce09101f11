"""Builds the model of a run: its specification, initial weights, settings and adapter."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from trivium.adapt import ParameterCounts, count_parameters
from trivium.adapt.quantize import quantize_base
from trivium.errors import RecipeError
from trivium.interop.settings import Settings
from trivium.language_model import LanguageModel
from trivium.lazy_tensors import LazyTensors
from trivium.models import LanguageModule, build
from trivium.models.base_model import Spec
from trivium.models.electra import GeneratorAndDiscriminator
from trivium.models.heads import Head
from trivium.nn.positions.learned import Learned
from trivium.nn.positions.sinusoidal import Sinusoidal
from trivium.objectives import Objective
from trivium.objectives.seq2seq import SourceToTarget
from trivium.objectives.task_metrics import quote_names
from trivium.remote_model import find_local_path
from trivium.stored_model import StoredModel, open_model
from trivium.text import Tokenizer
from trivium.text.chat_template import ChatTemplate
from trivium.text.vocabulary import Vocabulary
from trivium.train import defaults
from trivium.train.distributed import Parallel
from trivium.train.recipe import Recipe
from trivium.train.starting_weights import BaseWeights, PartsStartingWeights, StartingWeights
from trivium.workflows.corpus import Corpus, ExampleSource
from trivium.workflows.known_labels import KnownLabels, compare_labels, has_label_rows


@dataclass
class ModelSetup:
    """The model of a run, ready for training.

    Args:
        recipe: the recipe. Keys of its objectives that depend on the labelled examples are filled
            in.
        vocabulary: the vocabulary of the tokenizer, plus the decoder's start token.
        module: the module to train. This is `lm.module`, except that ELECTRA trains a module that
            contains the generator and the discriminator.
        lm: the model that the run saves.
        parameters: the numbers of trained and frozen parameters.
        new_heads: the kinds of heads that are newly initialized because the base model lacks them.
        labels: the labels of the base model and of the data.
        fit_settings: a function that takes the length of the longest example in tokens, and returns
            the settings of the model.
        weights: the weights to load after the model is sharded; until then, it is on the meta
            device. None if the weights are loaded already.
    """

    recipe: Recipe
    vocabulary: Vocabulary
    module: nn.Module
    lm: LanguageModel
    parameters: ParameterCounts
    new_heads: tuple[str, ...]
    labels: KnownLabels
    fit_settings: Callable[[int], Settings]
    weights: StartingWeights | PartsStartingWeights | None

    def fit_context_length(self, corpus: Corpus, longest: int) -> None:
        """Adapt the model's maximum length to the longest example.

        `longest` is the number of tokens of this example. Does nothing if an example is truncated,
        or if the recipe sets `data.length`.
        """
        cut = any(
            truncations[:, 0].any()
            for one in corpus.example_sources
            for truncations in one.truncations.values()
        )
        if corpus.example_sources and not cut and self.recipe.data.length is None:
            self.lm.settings = self.fit_settings(longest)


def set_up_model(
    corpus: Corpus, spec: Spec, base: StoredModel | None, device: torch.device, parallel: Parallel
) -> ModelSetup:
    """Build the model of a run, with the heads and the vocabulary that the run needs.

    If there is a base model, its weights are copied. With several processes, the model is built on
    the meta device if this is possible, and gets its weights when it is sharded.

    Args:
        corpus: the data of the run.
        spec: the specification of the model, before the vocabulary sizes and heads of this run are
            set.
        base: the model that training starts from; None to train from scratch.
        device: the device to train the model on.
        parallel: the processes of the run.

    Raises:
        RecipeError: the model, tokenizer, weights or adapter do not fit together.
    """
    settings = base.lm.settings if base is not None else Settings()
    for source in corpus.example_sources:
        examples = source.examples
        source.objective = source.objective.adapt_to_model(settings, examples).infer_keys(
            spec, examples
        )
    objectives = [source.objective for source in corpus.sources]
    vocabulary = _build_vocabulary(corpus.tokenizer, settings)
    if spec.family == "encoder-decoder":
        settings = _with_generation_ids(settings, objectives, vocabulary)
        vocabulary = _build_vocabulary(corpus.tokenizer, settings)
    _check_same_labels(corpus)
    for source in corpus.example_sources:
        settings = source.objective.add_settings(settings, source.examples)
        settings = source.objective.with_label_statistics(settings, source.train)
        _warn_about_unseen_labels(source)
    heads = [head for one in objectives for head in one.heads(spec, settings.labels)]
    keeps_weights = base is not None and not corpus.recipe.model.new_weights
    labels = compare_labels(base.lm if base and keeps_weights else None, settings, heads)
    if labels.base:
        settings = settings.with_labels(labels.final_labels, settings.label_kind)
    for source in corpus.example_sources:
        source.objective = source.objective.with_labels(settings.labels, source.examples)
    objectives = [source.objective for source in corpus.sources]
    recipe = corpus.recipe.with_objectives(objectives)
    settings = _with_prefixes(settings, objectives)
    final = _build_final_spec(recipe, spec, settings, corpus, new=base is None)
    answers = final.family == "decoder-only" and any(head.kind == "lm" for head in final.heads)
    if corpus.example_sources and answers:
        settings = _with_end_of_turn(settings, corpus.tokenizer)
    template = build(final, device="meta")
    base_weights, new_heads = BaseWeights(), tuple[str, ...]()
    if base is not None and keeps_weights:
        base_weights, new_heads = match_weights(base, template, labels)
        is_regression = settings.task == "classification" and settings.label_kind == "regression"
        if is_regression and labels.base and "classifier" not in new_heads:
            scales = base.lm.settings.label_scale, settings.label_scale
            base_weights, scale = base_weights.with_label_scale(*scales)
            settings = settings.with_label_scale(*scale)
    # The model is first built on the host if it is sharded or quantised afterwards.
    on_host = parallel.size > 1 or recipe.model.quantize is not None
    weights = StartingWeights(final, recipe.seed, corpus.tokenizer, base_weights)
    module = objectives[0].build(final, seed=recipe.seed, device=torch.device("meta"))
    if isinstance(module, GeneratorAndDiscriminator):
        weights = build_weights_of_both(recipe, module, weights)
    else:
        # TSDAE and PPO train a model with parts that are not saved.
        assert isinstance(module, LanguageModule)
        weights = replace(weights, spec=module.spec)
        weights = weights.with_weights(objectives[0].initial_values(module))
    if parallel.size == 1:
        weights.load_into(cast(Any, module), torch.device("cpu") if on_host else device)
        weights = None
    model = objectives[0].models_to_save(module)[""]
    earlier = None
    if base is not None and recipe.model.starts_from_weights:
        earlier = base.lm.trained_length or 0
    fit = partial(_with_lengths, settings, final, corpus, earlier)
    lm = LanguageModel(
        final, model, corpus.tokenizer, fit(), source_tokenizer=corpus.source_tokenizer
    )
    recipe.freeze_or_add_lora(lm.module, settings.config.get("model_type"))
    recipe = _quantize_base(recipe, module, lm, device)
    parameters = count_parameters(module)
    return ModelSetup(recipe, vocabulary, module, lm, parameters, new_heads, labels, fit, weights)


def build_weights_of_both(
    recipe: Recipe, module: GeneratorAndDiscriminator, weights: StartingWeights
) -> PartsStartingWeights:
    """Return the starting weights of ELECTRA's discriminator and generator.

    `weights` are those of the discriminator. If it starts from a run that has saved the generator,
    too, the weights of the generator are copied from there.
    """
    generator = build(module.generator.spec, device="meta")
    base = BaseWeights()
    if weights.base.copied:
        folder = find_local_path(str(recipe.model.init_from)) / "generator"
        if folder.is_dir():
            base, _ = match_weights(open_model(folder), generator)
    # The seed of the generator is that of `build_with_generator`.
    other = replace(weights, spec=generator.spec, seed=weights.seed + 1, base=base)
    if module.sharing == "gradient-disentangled":
        weights, other = _disentangle(weights, other)
    return PartsStartingWeights({"discriminator": weights, "generator": other})


def _disentangle(
    discriminator: StartingWeights, generator: StartingWeights
) -> tuple[StartingWeights, StartingWeights]:
    """Replace the token embeddings of a discriminator by their difference from the generator's.

    Without a saved generator, the generator starts with the token embeddings of the discriminator,
    so that the difference is 0 (see `DisentangledTable`).
    """
    table = "tokens.weight"

    def copy() -> Tensor:
        """Return the token embeddings of the discriminator."""
        return discriminator.read(table)

    def subtract() -> Tensor:
        """Return the difference between the token embeddings."""
        return copy().float() - generator.base.tensors[table].float()

    if table in generator.base.copied:
        return discriminator.with_weights(LazyTensors({table: subtract})), generator
    zeros = LazyTensors({table: lambda: torch.zeros_like(copy())})
    other = generator.with_weights(LazyTensors({table: copy}))
    return discriminator.with_weights(zeros), other


def _quantize_base(
    recipe: Recipe, module: nn.Module, lm: LanguageModel, device: torch.device
) -> Recipe:
    """Quantise the frozen weights as in `model.quantize`, and move the model to the device.

    Returns the recipe, without `torch.compile` if the weights are quantised.

    Raises RecipeError if the run trains two models at once.
    """
    if recipe.model.quantize is None:
        return recipe
    if module is not lm.module:
        raise RecipeError(
            f'objective.kind = "{recipe.objectives[0].kind}" trains two models at once, which is '
            "not supported with model.quantize: leave it out."
        )
    quantize_base(lm.module, recipe.model.quantize, device)
    module.to(device)
    return recipe.replace(train=recipe.train.replace(compile=False))


def match_weights(
    base: StoredModel, model: LanguageModule, labels: KnownLabels | None = None
) -> tuple[BaseWeights, tuple[str, ...]]:
    """Find the weights of a base model that a model of this structure can start from.

    Heads that the base model lacks keep their random initialization. In a classification head with
    one row per label, only the rows of known labels are copied. Returns the weights, and the kinds
    of heads that remain newly initialized. `model` may be on the meta device.

    Raises:
        RecipeError: any other weight is missing from the base model, or has a different shape.
    """
    state, rows = base.lm.module.state_dict(), 0 if labels is None else len(labels.base)
    new_heads = tuple(
        head.kind for head in model.spec.heads if not _has_head(base.lm.spec, head, labels)
    )
    new = tuple(f"heads.{kind}." for kind in new_heads)
    by_label = tuple(f"heads.{head.kind}." for head in model.spec.heads if has_label_rows(head))
    incomplete: set[str] = set()
    shapes = {name: w.shape for name, w in model.state_dict().items() if not name.startswith(new)}
    for name, shape in shapes.items():
        has_other_rows = name in state and state[name].shape != shape
        if has_other_rows and name.startswith(by_label) and state[name].shape[1:] == shape[1:]:
            incomplete.add(name)
        elif name not in state or has_other_rows:
            raise RecipeError(
                f"the model to start from has no {name} of shape {list(shape)}: it is built "
                "differently, so its weights cannot be used."
            )
    return BaseWeights(base.weights, shapes.keys(), incomplete, rows), new_heads


def _has_head(spec: Spec, head: Head, labels: KnownLabels | None) -> bool:
    """Return whether the spec of a base model contains a head of the new model.

    If the labels of the base model are kept, classification heads may differ in the number of
    labels.
    """
    if labels is None or not has_label_rows(head):
        return head in spec.heads
    same = (one for one in spec.heads if has_label_rows(one) and one.kind == head.kind)
    return labels.keeps_base and any(h.replace(num_labels=head.num_labels) == head for h in same)


def _check_same_labels(corpus: Corpus) -> None:
    """Raise RecipeError if the labelled data sources of a mix have different tasks or labels."""
    known: dict[str, tuple[str, ...]] = {}
    for source in corpus.example_sources if len(corpus.example_sources) > 1 else ():
        names = source.objective.label_names(source.examples)
        if names:
            kind = getattr(source.objective, "label_kind", None) or "classes"
            task = source.objective.kind + f", {kind}" * (kind != "classes")
            known[f"{source.config.name} ({task})"] = names
    first = next(iter(known), "")
    for name, names in known.items():
        if set(names) != set(known[first]) or name.split("(")[-1] != first.split("(")[-1]:
            raise RecipeError(
                f"the sources of a mix train one head, which has one set of labels. {first} has "
                f"{quote_names(known[first])}, and {name} has {quote_names(names)}. Give all "
                "sources the same task and labels, or train one model for each."
            )


def _warn_about_unseen_labels(source: ExampleSource) -> None:
    """Warn about labels that the model cannot learn, because only validation examples have them."""
    seen = source.objective.label_names(source.train)
    unseen = [name for name in source.objective.label_names(source.valid) if name not in seen]
    if unseen:
        warnings.warn(
            f"only held-out examples have the label {quote_names(unseen)}: it is not learned. "
            "Is it a typo, or are there too few examples?",
            stacklevel=2,
        )


def _build_vocabulary(tokenizer: Tokenizer, settings: Settings) -> Vocabulary:
    """Return the tokenizer's vocabulary with the decoder's start token from the settings."""
    start = next(iter(settings.decoder_start), None)
    return dataclasses.replace(tokenizer.vocabulary, decoder_start_id=start)


def _with_prefixes(settings: Settings, objectives: Sequence[Objective]) -> Settings:
    """Return settings with the task prefix of source texts, such as "translate: ".

    The prefix is prepended to every source text. If the tasks of a mix have different prefixes, no
    prefix is prepended automatically. Users must then start source texts with one of the prefixes
    themselves.
    """
    tasks = [each for each in objectives if isinstance(each, SourceToTarget)]
    prefixes = list(dict.fromkeys(task.prefix for task in tasks))
    if not tasks:
        return settings
    several = {"prefixes": prefixes} if len(prefixes) > 1 else {"prefix": prefixes[0]}
    return settings.with_task(tasks[-1].kind, **several)


def _with_generation_ids(
    settings: Settings, objectives: Sequence[Objective], vocabulary: Vocabulary
) -> Settings:
    """Return settings with the start, end and padding token ids of an encoder-decoder.

    Raises RecipeError if the tokenizer lacks one of these tokens.
    """
    starts = [objective.decoder_start_id(vocabulary) for objective in objectives]
    starts += [vocabulary.bos_id, vocabulary.pad_id]
    ids = {
        "decoder_start_token_id": next((start for start in starts if start is not None), None),
        "eos_token_id": vocabulary.end_id,
        "pad_token_id": vocabulary.pad_id,
    }
    ids = {**ids, **settings.config, **settings.generation}
    missing = [name for name, index in ids.items() if index is None]
    if missing:
        raise RecipeError(
            f"this tokenizer has no {missing[0].removesuffix('_id')}: use one with <pad>, </s> "
            "and <s>."
        )
    kept = {name: ids[name] for name in ids if name.endswith("_token_id")}
    return dataclasses.replace(
        settings, generation={**kept, **settings.generation}, config={**kept, **settings.config}
    )


def _with_end_of_turn(settings: Settings, tokenizer: Tokenizer) -> Settings:
    """Return settings that make generation stop at the chat template's end-of-turn token, too."""
    if settings.chat_template is None:
        return settings
    end = ChatTemplate.of(settings.chat_template, tokenizer).find_end_of_turn(tokenizer)
    before = [i for i in (tokenizer.eos_id, *settings.ids("eos_token_id")) if i is not None]
    if end is None:
        warnings.warn(
            "the chat template closes a turn with none of the tokenizer's special tokens: answers "
            "do not end by themselves. Add the token to tokenizer.special_tokens in pretraining, "
            "or take another template.",
            stacklevel=2,
        )
    if end is None or end in before:
        return settings
    ends = {"eos_token_id": list(dict.fromkeys([*before, end]))}
    return dataclasses.replace(settings, generation={**settings.generation, **ends})


def _build_final_spec(
    recipe: Recipe, spec: Spec, settings: Settings, corpus: Corpus, *, new: bool
) -> Spec:
    """Return the spec with the vocabulary size, the heads of all objectives, and dropout set.

    `new` is true if there is no base model. Only then is the vocabulary size set.
    """
    heads: dict[str, Head] = {}
    for objective in recipe.objectives:
        heads |= {head.kind: head for head in objective.heads(spec, settings.labels)}
    if len({len(objective.model_specs(spec)) for objective in recipe.objectives}) > 1:
        raise RecipeError(
            "an objective that trains two models at once (replaced-token, tsdae) cannot be mixed "
            "with others: leave it out of [[mix]]."
        )
    known = [head.kind for head in spec.heads]
    ordered = sorted(heads, key=lambda kind: known.index(kind) if kind in known else len(known))
    if new:
        source = corpus.source_tokenizer
        sizes = corpus.tokenizer.vocab_size, source.vocab_size if source else None
        spec = defaults.with_vocabulary_sizes(spec, *sizes)
        spec = spec.replace(**_find_padding_offset_change(spec, corpus.tokenizer))
    final = spec.with_heads(tuple(heads[kind] for kind in ordered))
    return final.with_dropout(defaults.dropout(recipe))


def _find_padding_offset_change(spec: Spec, tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the fields of a spec to change so that position ids start after the padding id.

    The first position id is then the padding id plus one. This is needed for models whose position
    ids skip padding, such as RoBERTa. For other models, the returned dict is empty.
    """
    positions = spec.absolute_position_encoding
    if not isinstance(positions, Learned | Sinusoidal) or positions.counted != "not-padding":
        return {}
    positions = positions.replace(offset=(tokenizer.pad_id or 0) + 1)
    return {"embedding": spec.embedding.replace(positions=positions)}  # type: ignore[attr-defined]


def _with_lengths(
    settings: Settings, spec: Spec, corpus: Corpus, earlier: int | None, longest: int | None = None
) -> Settings:
    """Return settings that record the training length and the maximum input length.

    The training length is the longest row of training in tokens. The settings also record whether
    special-token strings in the data were encoded as control tokens.

    Args:
        settings: the settings without the lengths of this run.
        spec: the specification of the model. RNNs and n-gram models get no training length.
        corpus: the data of the run.
        earlier: the training length of the base model in tokens, or None without a base model. 0
            means that it is unknown. In this case, the new training length is also unknown.
        longest: the length of the longest example in tokens, or None if the examples are not
            encoded yet.
    """
    recipe, config, options = corpus.recipe, {**settings.config}, {**settings.tokenizer}
    lengths = [defaults.row_length(recipe)] if corpus.text_sources else []
    if corpus.example_sources:
        length = defaults.max_example_length(recipe, spec)
        if longest is None:
            options["model_max_length"] = length
        else:
            length = min(length, max(longest, defaults.SHORT_EXAMPLE))
        lengths.append(length)
    if earlier is not None:
        lengths.append(earlier)
    if spec.stacks and min(lengths):
        config["trained_length"] = max(lengths)
    config.pop("trained_special_tokens", None)
    if recipe.data.special_tokens == "special":
        config["trained_special_tokens"] = "special"
    return dataclasses.replace(settings, config=config, tokenizer=options)
