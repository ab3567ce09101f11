"""Preferences, judgements, rewards and policies against trl, with the same weights in float64."""

from __future__ import annotations

import copy
import json
import warnings
from types import SimpleNamespace

import pytest
import torch
from overfit_tasks import encode_with_references, untrained
from run_settings import quiet

from trivium.data.batch import IGNORE_INDEX
from trivium.data.row_order import RowRandom
from trivium.interop.convert import to_hugging_face
from trivium.objectives import to_device
from trivium.objectives.kto import KTO, UnpairedPreference
from trivium.objectives.policy import PolicyGradient
from trivium.objectives.preference import (
    PreferenceOptimization,
    compute_log_probabilities,
    compute_preference_losses,
)
from trivium.objectives.preference_pairs import Preference
from trivium.objectives.responses import Prompt
from trivium.objectives.reward_model import Reward
from trivium.train.distributed import SINGLE_PROCESS
from trivium.workflows.training import finetune

pytestmark = [pytest.mark.usefixtures("double_precision"), pytest.mark.filterwarnings("ignore")]

CPU = torch.device("cpu")
PAIRS = [
    Preference("who wrote it", " Ada did", " go away and never come back", "x, line 1", 0.5),
    Preference("what is red", " a rose is red", " nothing", "x, line 2"),
    Preference("hi", " ho", " he he he", "x, line 3", 1.5),
]
JUDGEMENTS = [
    UnpairedPreference("who wrote it", " Ada did", True, "x, line 1"),
    UnpairedPreference("who wrote it", " go away and never come back", False, "x, line 2"),
    UnpairedPreference("what is red", " a rose is red", True, "x, line 3"),
    UnpairedPreference("hi", " he he he", False, "x, line 4"),
    UnpairedPreference("hi", " ho", True, "x, line 5"),
]
ROWS = [{"prompt": one.prompt, "chosen": one.chosen, "rejected": one.rejected} for one in PAIRS]
KINDS = ("regex", "length")
# The reference's log-probabilities, advantages and margins are float32 in a batch of ours. A
# log-probability of -22 is rounded by 1e-6, and gradients are compared with the largest of 0.15.
KEPT = 1e-5


@pytest.fixture(scope="module")
def trl():
    """Loaded when it is needed: it takes seconds."""
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        patch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
        import datasets
        import trl
        import trl.experimental.cpo
        import trl.experimental.orpo

    datasets.disable_progress_bars()
    return trl


def shaken(lm):
    with torch.no_grad():
        for weight in lm.module.parameters():
            weight.add_(0.05 * torch.randn(weight.shape, dtype=torch.float32))
    return lm


def exported(lm, folder, kind="AutoModelForCausalLM"):
    """The model and its tokenizer as `transformers` reads what is written for it."""
    import transformers

    lm.save_hf(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    tokenizer.pad_token = tokenizer.unk_token  # theirs tells padding by its id
    auto = getattr(transformers, kind)
    return auto.from_pretrained(folder, dtype=torch.float64).eval(), tokenizer


def trainer_of(trl, name, folder, model, rows, tokenizer, options, **keys):
    from datasets import Dataset

    plain = {"report_to": "none", "bf16": False, "use_cpu": True, "save_strategy": "no"}
    args = getattr(trl, f"{name}Config")(
        str(folder / "out"), **plain, **{"per_device_train_batch_size": 8, **options}
    )
    trainer = getattr(trl, f"{name}Trainer")(
        model, args=args, train_dataset=Dataset.from_list(rows), processing_class=tokenizer, **keys
    )
    trainer.args.disable_tqdm = True
    return trainer


def batch_of(objective, lm, examples):
    rows = encode_with_references(objective, examples, lm).take(range(len(examples)))
    return objective.prepare(rows, RowRandom(0, [0] * len(examples)), lm.tokenizer.vocabulary)


def assert_equal_steps(objective, lm, batch, model, loss, *, value=True):
    """Our loss of a batch, weighted as the trainer does it, and its gradient are theirs."""
    terms, counts = (
        objective.loss(lm.module, to_device(batch, CPU)),
        objective.loss_denominators(batch),
    )
    weights = objective.term_weights()
    ours = sum(weights.get(name, 1.0) * term / counts[name] for name, term in terms.items())
    assert not value or float(ours.detach()) == pytest.approx(float(loss.detach()), rel=KEPT)
    lm.module.zero_grad()
    model.zero_grad()
    ours.backward()
    loss.backward()
    twin = copy.deepcopy(lm.module)
    with torch.no_grad():
        for weight, own in zip(twin.parameters(), lm.module.parameters()):
            weight.copy_(torch.zeros_like(own) if own.grad is None else own.grad)
    gradients = to_hugging_face(twin)[1]
    theirs = {name: weight.grad for name, weight in model.named_parameters() if name in gradients}
    assert len(theirs) > 20
    largest = max(float(one.abs().max()) for one in theirs.values())
    assert largest > 1e-3
    for name, one in theirs.items():
        assert float((one - gradients[name]).abs().max()) < KEPT * largest, name


@pytest.mark.parametrize("kind", ["sigmoid", "hinge", "ipo", "simpo", "orpo"])
def test_losses_of_given_log_probabilities(kind, trl):
    policy = torch.tensor([[-3.1, -9.2], [-7.7, -2.3], [-11.9, -40.0]])
    reference = torch.tensor([[-4.0, -8.1], [-5.9, -3.3], [-13.5, -16.0]])
    tokens = torch.tensor([[3, 7], [5, 2], [13, 11]])
    logps = policy / tokens if kind in ("simpo", "orpo") else policy - reference
    smoothing = 0.2 if kind in ("sigmoid", "simpo") else 0.0
    keys = {"loss_type": kind, "beta": 0.7, "label_smoothing": smoothing}
    objective = PreferenceOptimization(**keys, gamma=0.3)
    trainer = SimpleNamespace(**keys, simpo_gamma=0.3, alpha=0.0)
    trainer.accelerator = SimpleNamespace(device=CPU)
    if kind == "orpo":
        losses, *_ = trl.experimental.orpo.ORPOTrainer.odds_ratio_loss(trainer, *logps.T)
        losses = -losses
    else:
        losses, *_ = trl.experimental.cpo.CPOTrainer.cpo_loss(trainer, *logps.T)
    ours = compute_preference_losses(objective, policy, reference, tokens)
    assert ours.tolist() == pytest.approx(losses.tolist(), rel=1e-12)


def test_a_batch_of_pairs(trl, tmp_path):
    objective, lm = untrained(PreferenceOptimization(), PAIRS, "gpt2")
    reference, tokenizer = exported(lm, tmp_path / "reference")
    batch = batch_of(objective, lm, PAIRS)
    model, _ = exported(shaken(lm), tmp_path / "model")
    trainer = trainer_of(trl, "DPO", tmp_path, model, ROWS, tokenizer, {}, ref_model=reference)
    inputs = trainer.data_collator([*trainer.train_dataset])
    tensors = to_device(batch, CPU)
    ids, mask, chosen = (
        inputs[name].view(2, len(PAIRS), -1).transpose(0, 1)
        for name in ("input_ids", "attention_mask", "completion_mask")
    )
    half = tensors.inputs["input_ids"].shape[2]
    labels = torch.tensor(batch.labels).view(len(PAIRS), 2, half)
    own = labels[..., :-1] != IGNORE_INDEX
    assert (own == chosen[..., 1:].bool()).all()
    assert (labels[..., :-1][own] == ids[..., 1:][own]).all()
    assert (tensors.inputs["attention_mask"].view(mask.shape) == mask).all()
    input_ids = tensors.inputs["input_ids"].view(mask.shape)
    assert (input_ids[mask > 0] == ids[mask > 0]).all()
    for kind in ("sigmoid", "hinge"):
        trainer.loss_types, trainer.loss_weights = [kind, "sft"], [1.0, 0.2]
        objective = PreferenceOptimization(loss_type=kind, sft_weight=0.2).infer_keys(lm.spec, ())
        loss = trainer.compute_loss(model, inputs)
        assert_equal_steps(objective, lm, batch, model, loss)
    # Their ipo is ours with means over tokens in place of the paper's sums.
    trainer.loss_types, trainer.loss_weights = ["ipo"], [1.0]
    with torch.no_grad():
        sums, counts, _ = compute_log_probabilities(lm.module, tensors)
        means = (sums - tensors.sequence_labels) / counts
        ipo = PreferenceOptimization(loss_type="ipo", beta=0.1)
        ours = compute_preference_losses(ipo, means, torch.zeros_like(means), counts).mean()
        assert float(ours) == pytest.approx(float(trainer.compute_loss(model, inputs)), rel=KEPT)


def test_a_batch_of_judgements(trl, tmp_path):
    objective, lm = untrained(KTO(desirable_weight=1.3, undesirable_weight=0.6), JUDGEMENTS, "gpt2")
    start = copy.deepcopy(lm.module.state_dict())
    reference, tokenizer = exported(shaken(lm), tmp_path / "reference")
    batch = batch_of(objective, lm, JUDGEMENTS)
    lm.module.load_state_dict(start)  # whose divergence is positive
    model, _ = exported(lm, tmp_path / "model")
    rows = [
        {"prompt": one.prompt, "completion": one.response, "label": one.is_desirable}
        for one in JUDGEMENTS
    ]
    weights = {"desirable_weight": 1.3, "undesirable_weight": 0.6}
    trainer = trainer_of(trl, "KTO", tmp_path, model, rows, tokenizer, weights, ref_model=reference)
    encoded = [*trainer.train_dataset]
    # The response of another prompt is that of the example before; ours is half the file further.
    half = len(encoded) // 2
    for one, other in zip(encoded, [*encoded[half:], *encoded[:half]]):
        one["KL_completion_ids"] = other["completion_ids"]
    loss = trainer.compute_loss(model, trainer.data_collator(encoded))
    assert trainer._metrics["eval"]["kl"][0] > 0
    assert_equal_steps(objective, lm, batch, model, loss)


def test_a_batch_of_rewards(trl, tmp_path):
    objective, lm = untrained(Reward(center=0.3), PAIRS, "gpt2")
    batch = batch_of(objective, lm, PAIRS)
    name = "AutoModelForSequenceClassification"
    model, tokenizer = exported(shaken(lm), tmp_path / "model", name)
    # What is written ends texts itself, as `classify` does; to texts trl would add another end.
    rows = [
        {
            "margin": one.margin,
            **{
                f"{name}_ids": tokenizer(row["prompt"] + row[name])["input_ids"]
                for name in ("chosen", "rejected")
            },
        }
        for one, row in zip(PAIRS, ROWS)
    ]
    options = {"center_rewards_coefficient": 0.3}
    trainer = trainer_of(trl, "Reward", tmp_path, model, rows, tokenizer, options)
    inputs = trainer.data_collator([*trainer.train_dataset])
    assert_equal_steps(objective, lm, batch, model, trainer.compute_loss(model, inputs))


def test_a_batch_of_samples(trl, tmp_path):
    """Advantages, the divergence in the reward and as k3, and the losses of RLOO and Dr. GRPO."""
    from trl.trainer.utils import add_fused_lm_head

    prompts = [Prompt(text, {}, f"x, line {n}") for n, text in enumerate(("who is", "a rose"))]
    rewards = ({"kind": "regex", "pattern": "a"}, {"kind": "length", "target": 9, "weight": 0.7})
    keys = {
        "num_generations": 4,
        "beta": 0.3,
        "temperature": 0.8,
        "max_new_tokens": 5,
        "rewards": rewards,
    }
    same = {"num_generations": 4, "beta": 0.3, "temperature": 0.8, "max_completion_length": 5}
    # By default theirs multiplies k3 by the ratio, which GRPO's paper does not.
    grpo = {"loss_type": "dr_grpo", "use_bias_correction_kl": False, "num_iterations": 2}
    rows = [{"prompt": one.prompt} for one in prompts for _ in range(4)]
    for name, changes, options in (
        ("RLOO", {}, {}),
        ("GRPO", {"algorithm": "grpo", "kl": "k3", "num_iterations": 2}, grpo),
    ):
        objective = PolicyGradient(**keys, **changes)
        _, lm = untrained(PreferenceOptimization(), PAIRS, "gpt2")
        reference, tokenizer = exported(lm, tmp_path / f"{name}-reference")
        encoded = objective.encode(prompts, lm).take(range(2)).to_batch()
        model, _ = exported(shaken(lm), tmp_path / f"{name}-model")
        batch = objective.rollout(lm, lm.module, [encoded], 3, SINGLE_PROCESS.map)
        scores = dict(zip(objective._metric_names, batch.metrics.T))
        scores = {one: scores[f"reward_{one}"] for one in KINDS}
        trainer = trainer_of(
            *(trl, name, tmp_path, model, rows, tokenizer),
            {**same, **options, "reward_weights": [1.0, 0.7]},
            reward_funcs=[lambda one=one, **_: one.tolist() for one in scores.values()],
        )
        trainer.ref_model = reference
        add_fused_lm_head(reference, temperature=0.8)
        responses = [row[row != IGNORE_INDEX].tolist() for row in batch.labels]
        ids = [lm.prompts([one["prompt"]])[0] for one in rows]
        drawn = (ids, responses, tokenizer.batch_decode(responses))
        if name == "GRPO":
            drawn = (*drawn[:2], None, drawn[2], None, {}, None, None)
        trainer._generate = lambda *_, drawn=drawn: drawn
        trainer.current_gradient_accumulation_steps = 1
        model.train()
        inputs = trainer._generate_and_score_completions(rows)
        # RLOO has the ratio of whole texts: where it is 1, another value and the same gradient.
        # Dr. GRPO is divided by the tokens that a text may have, too.
        scale = {"RLOO": 1, "GRPO": 5}[name]
        loss = scale * trainer.compute_loss(model, inputs)
        assert_equal_steps(objective, lm, batch, model, loss, value=name == "GRPO")
    # The next update from the samples of GRPO, with PPO's bound.
    again, _ = exported(shaken(lm), tmp_path / "again")
    model.load_state_dict(again.state_dict())
    assert_equal_steps(objective, lm, batch, model, scale * trainer.compute_loss(model, inputs))
    assert objective.loss(lm.module, to_device(batch, CPU))["clipped"] > 0


def test_ten_steps_of_dpo(trl, tmp_path):
    """The same ids, order, rates, clipped gradients and AdamW: losses that are equal."""
    _, lm = untrained(PreferenceOptimization(), PAIRS, "gpt2")
    model, tokenizer = exported(lm, tmp_path / "start")
    options = {"max_steps": 10, "learning_rate": 3e-3, "lr_scheduler_type": "linear"}
    options |= {"weight_decay": 0.0, "per_device_train_batch_size": len(PAIRS)}
    reference = copy.deepcopy(model)
    trainer = trainer_of(
        *(trl, "DPO", tmp_path, model, ROWS, tokenizer, options), ref_model=reference
    )
    losses, compute_loss = [], trainer.compute_loss

    def noted(*args, **kwargs):
        losses.append(compute_loss(*args, **kwargs))
        return losses[-1]

    trainer.compute_loss = noted
    trainer.train()
    data = tmp_path / "pairs.jsonl"
    data.write_text("\n".join(map(json.dumps, ROWS)))
    changes = {
        "objective": {"sft_weight": 0.0},
        "optimizer": {"lr": 3e-3, "weight_decay": 0.0, "betas": [0.9, 0.999]},
        "schedule": {"kind": "linear", "warmup": 0.0},
        "train": {"steps": 10, "batch_examples": len(PAIRS), "log_every": 1, "eval_every": 10},
    }
    changes["train"] |= {"device": "cpu", "precision": "fp32"}
    valid = tmp_path / "valid.jsonl"
    valid.write_text(json.dumps({**ROWS[0], "prompt": "he"}))
    keys = {"data": data, "validation": [str(valid)], "changes": changes, "console": quiet()}
    run = finetune("preference", model=tmp_path / "start", out=tmp_path / "run", **keys)
    ours = [one["train_preference"] for one in run.read_metrics() if "train_loss" in one]
    # Ten steps of AdamW in float32 make rounding grow.
    assert ours == pytest.approx([float(one) for one in losses], rel=1e-4)
    assert ours[-1] < 0.2 < ours[0]
