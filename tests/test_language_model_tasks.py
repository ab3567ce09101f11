"""The verbs of models that were taught a task: what they know of it travels with them."""

from __future__ import annotations

import json

import pytest
import torch
from small_models import small_spec
from task_models import VOCABULARY, as_ours, theirs
from their_tokenizers import TEXT, ours

from trivium.errors import SpecError
from trivium.inference.beam import Beams
from trivium.interop.settings import Settings
from trivium.language_model import LanguageModel, load
from trivium.models import build
from trivium.spec import ClassifierHead

NAMES = ("bad", "very good", "so so")
SOURCES = ["a dull film", "Ada wrote it", "今天天气很好", " ".join(TEXT), "weather"]


def writer(kind: str = "t5", *, prefix: str = "rate: ", length: int | None = None, **config):
    """An encoder-decoder with random weights, taught to write the names of classes."""
    tokenizer = ours({"t5": "t5", "bart": "roberta", "transformer": "llama"}[kind])
    spec = small_spec(kind).replace(vocab_size=VOCABULARY)
    module = build(spec, seed=3)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for weight in module.parameters():
            weight += torch.empty(weight.shape).normal_(0.0, 0.2, generator=generator)
    told = {} if length is None else {"model_max_length": length}
    start = {"decoder_start_token_id": 0, **config}
    settings = Settings(tokenizer=told, config=start).with_labels(NAMES)
    return LanguageModel(
        spec, module, tokenizer, settings.with_task("classification", prefix=prefix)
    )


def by_hand(model: LanguageModel, text: str, length: int) -> torch.Tensor:
    """Log p of every name and the end behind it, given the text as training shows it."""
    tokenizer = model.text_tokenizer
    before, behind = list(tokenizer.prefix_ids), list(tokenizer.suffix_ids)
    read = list(tokenizer.encode(f"rate: {text}", add_special_tokens=False).ids)
    source = [*before, *read[: length - len(before) - len(behind)], *behind]
    found = []
    for name in NAMES:
        told = [*tokenizer.encode(name, add_special_tokens=False).ids, tokenizer.eos_id]
        logits = model.logits([source], decoder_input_ids=[[0, *told[:-1]]])[0]
        shares = logits[:, : tokenizer.vocab_size].double().log_softmax(-1)
        found.append(shares[torch.arange(len(told)), torch.tensor(told)].sum())
    return torch.stack(found)


@pytest.mark.parametrize("kind", ["t5", "bart", "transformer"])
def test_an_encoder_decoder_classifies_by_the_names_it_would_write(kind):
    model = writer(kind, length=23)
    with pytest.warns(UserWarning, match="1 of 5 texts are longer than the 23 tokens"):
        found = model.classify(SOURCES)
    for text, each in zip(SOURCES, found, strict=True):
        shares = by_hand(model, text, 23).softmax(0)
        assert list(each.scores) == [NAMES[n] for n in shares.argsort(descending=True)]
        assert each.scores[each.label] == each.score == pytest.approx(shares.max().item(), abs=1e-4)


def test_it_does_not_depend_on_what_else_is_asked():
    model = writer()
    together = model.classify(SOURCES)
    assert [model.classify(text) for text in SOURCES] == together
    assert model.classify(SOURCES[::-1]) == together[::-1]
    assert model.classify("a", "b") == model.classify("a b")
    assert model.classifier_logits([]).shape == (0, 3)


def test_labels_alone_make_no_classifier():
    """Published BARTs and T5s have names of labels that nobody taught them."""
    taught = writer()
    settings = Settings(config={"id2label": {"0": "LABEL_0", "1": "LABEL_1"}})
    model = LanguageModel(taught.spec, taught.module, taught.tokenizer, settings)
    assert "classify" not in model.verbs
    with pytest.raises(SpecError, match=r"cannot classify; .*`trivium finetune classification`"):
        model.classify("a")


@pytest.mark.parametrize(
    ("verb", "task", "arguments"),
    [("classify", "classification", ("a",)), ("tag", "tagging", ("a",)), ("answer", "qa", "ab")],
)
def test_what_a_model_was_not_taught(verb, task, arguments):
    model = as_ours(theirs("BertForMaskedLM"), "bert")
    with pytest.raises(
        SpecError, match=rf"an encoder and cannot {verb}; it has .*`trivium finetune {task}` teach"
    ):
        getattr(model, verb)(*arguments)
    with pytest.raises(SpecError, match="cannot translate; it has logits, fill_mask, score, embed"):
        model.translate("a")


def test_a_model_without_heads_embeds():
    model = as_ours(theirs("BertModel"), "bert")
    bare = LanguageModel(model.spec.replace(heads=()), build(model.spec.replace(heads=())), None)
    assert bare.verbs == ("embed",)
    with pytest.raises(SpecError, match="no head, which generate needs"):
        bare.generate("a")


def test_everything_travels_with_the_model(tmp_path):
    model = writer()
    again = load(model.save(tmp_path / "saved"))
    assert again.settings.labels == NAMES
    assert again.settings.taught_task == "classification"
    assert again.classify(SOURCES) == model.classify(SOURCES)
    encoder = as_ours(theirs("BertForSequenceClassification", num_labels=3), "bert")
    settings = Settings().with_labels(NAMES, "multi-label")
    encoder = LanguageModel(encoder.spec, encoder.module, encoder.tokenizer, settings)
    found = load(encoder.save_hf(tmp_path / "theirs"))
    assert found.classify(SOURCES[:3]) == encoder.classify(SOURCES[:3])
    config = json.loads((tmp_path / "theirs" / "config.json").read_text())
    assert config["id2label"] == {"0": "bad", "1": "very good", "2": "so so"}
    assert config["problem_type"] == "multi_label_classification"


def test_a_folder_that_names_no_labels(tmp_path):
    """`transformers` leaves out names that are those it gives by itself."""
    hf = theirs("BertForSequenceClassification", num_labels=2)
    hf.save_pretrained(tmp_path)
    ours("bert").save(tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    for name in ("id2label", "label2id"):
        config.pop(name, None)
    path.write_text(json.dumps(config))
    assert set(load(tmp_path).classify("a").scores) == {"LABEL_0", "LABEL_1"}


@pytest.mark.parametrize("config", [{}, {"id2label": {"0": "LABEL_0"}}])
def test_a_single_label_is_a_number(config):
    hf = theirs("BertForSequenceClassification", num_labels=1)
    found = as_ours(hf, "bert", **config).classify("a text", "and another")
    assert (found.label, found.scores) == ("", {})
    logits = as_ours(hf, "bert").classifier_logits([("a text", "and another")])
    assert found.score == logits.item()


def test_kinds_and_names_of_labels():
    settings = Settings()
    assert (settings.labels, settings.label_kind, settings.taught_task) == ((), "classes", None)
    for kind in ("classes", "multi-label", "numbers"):
        names = [f"l{n}" for n in range(13)]
        told = settings.with_labels(names, kind)
        assert told.labels == tuple(names)
        assert told.label_kind == kind
    assert settings.with_labels(["one"], "multi-label").label_kind == "multi-label"
    told = settings.with_task("qa", stride=7).with_task("tagging")
    assert told.taught_task == "tagging"
    assert told.task_options("qa") == {"stride": 7}
    assert told.task_options("translation") == {}
    # A task that their config names, but not we, is not known here.
    assert Settings(config={"finetuning_task": "mnli"}).taught_task is None


def test_a_decoder_reads_the_end_it_was_taught_with():
    hf = theirs("GPT2ForSequenceClassification", num_labels=3, pad_token_id=VOCABULARY - 1)
    plain = as_ours(hf, "gpt2")
    settings = Settings().with_labels(NAMES).with_task("classification", prefix="")
    taught = LanguageModel(plain.spec, plain.module, plain.tokenizer, settings)
    tokenizer = plain.text_tokenizer
    ids = list(tokenizer.encode(SOURCES[0]).ids)
    for model, read in ((plain, ids), (taught, [*ids, tokenizer.eos_id])):
        with torch.no_grad():
            wanted = hf(torch.tensor([read])).logits[0]
        found = model.classifier_logits([(SOURCES[0], None)])[0]
        torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-4)


def test_decoders_with_both_heads_classify_with_theirs():
    spec = small_spec("gpt2").replace(vocab_size=VOCABULARY)
    head = ClassifierHead(num_labels=3, pooling="last", bias=False)
    spec = spec.replace(heads=(*spec.heads, head))
    model = LanguageModel(spec, build(spec), ours("gpt2"), Settings().with_labels(NAMES))
    assert {"classify", "generate"} <= {*model.verbs}
    assert set(model.classify("a").scores) == {*NAMES}


def test_translation_is_asked_with_the_prefix_it_was_taught_with():
    model = writer("bart", forced_eos_token_id=None)
    model.settings = model.settings.with_task("summarization", prefix="sum: ")
    beams = Beams(num_beams=2)
    found = model.translate(SOURCES[:3], beams=beams, max_new_tokens=7)
    sources = [f"sum: {text}" for text in SOURCES[:3]]
    assert found == model.write_targets(sources, beams=beams, max_new_tokens=7)
    assert found == [model.translate(t, beams=beams, max_new_tokens=7) for t in SOURCES[:3]]
    assert model.translate([]) == []


def test_how_targets_are_searched_for_is_told_by_the_settings():
    model = writer()
    assert model.usual_beams() == Beams()
    told = {"num_beams": 3, "length_penalty": 0.0, "no_repeat_ngram_size": 2}
    model.settings = Settings(generation={**told, "early_stopping": True})
    wanted = Beams(num_beams=3, length_penalty=0.0, no_repeat_ngram=2, early_stopping=True)
    assert model.usual_beams() == wanted


@pytest.mark.parametrize(
    "given",
    ["{{ x }}", [{"name": "tool", "template": "no"}, {"name": "default", "template": "{{ x }}"}]],
)
def test_a_chat_template_among_the_options_of_a_tokenizer(tmp_path, given):
    path = tmp_path / "tokenizer_config.json"
    path.write_text(json.dumps({"chat_template": given}))
    assert Settings.read(tmp_path).chat_template == "{{ x }}"
    (tmp_path / "chat_template.jinja").write_text("{{ newer }}")
    assert Settings.read(tmp_path).chat_template == "{{ newer }}"
