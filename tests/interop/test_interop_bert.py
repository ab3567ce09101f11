"""BERT in and out of Hugging Face."""

from __future__ import annotations

import pytest
import torch
from encoder_families import CONFIG, check_choices, check_exports, options, padded_inputs
from hugging_face import check_family, options_of, ours_of, randomize

from trivium import spec
from trivium.errors import CheckpointError, SpecError
from trivium.interop import from_hugging_face, to_hugging_face
from trivium.interop.bert import BERT
from trivium.models import build

transformers = pytest.importorskip("transformers")

CLASSES = [
    "BertModel",
    "BertForMaskedLM",
    "BertForPreTraining",
    "BertForNextSentencePrediction",
    "BertForSequenceClassification",
    "BertForTokenClassification",
    "BertForQuestionAnswering",
]


def tiny(name: str, **changes):
    config = transformers.BertConfig(**options(name, **changes))
    return getattr(transformers, name)(config)


def tensors_of(hf_model) -> dict[str, torch.Tensor]:
    return {name: tensor.detach() for name, tensor in hf_model.state_dict().items()}


@pytest.mark.parametrize("name", CLASSES)
def test_every_class_answers_equally_both_ways(name):
    check_family(tiny(name), padded_inputs())


def test_the_body_without_its_pooler():
    body = transformers.BertModel(transformers.BertConfig(**CONFIG), add_pooling_layer=False)
    ours = ours_of(randomize(body, seed=1))
    assert ours.spec.heads == ()
    inputs = padded_inputs()
    real = inputs["attention_mask"].bool()
    theirs = body(**inputs).last_hidden_state[real]
    torch.testing.assert_close(ours(**inputs)[real], theirs, atol=1e-4, rtol=1e-4)
    assert not any("pooler" in name for name in to_hugging_face(ours)[1])


@pytest.mark.parametrize("name", ["BertForMaskedLM", "BertForPreTraining"])
def test_untied_and_another_activation(name):
    ours = check_family(
        tiny(name, tie_word_embeddings=False, hidden_act="gelu_new"), padded_inputs()
    )
    assert ours.spec.heads[0].tied is False


def test_multiple_choice_is_a_classifier_of_one_label():
    check_choices(tiny("BertForMultipleChoice"))


def test_an_old_untied_file_has_one_bias():
    hf_model = randomize(tiny("BertForMaskedLM", tie_word_embeddings=False), seed=2)
    with torch.no_grad():
        hf_model.cls.predictions.bias.copy_(hf_model.cls.predictions.decoder.bias)
    tensors = tensors_of(hf_model)
    del tensors["cls.predictions.decoder.bias"]
    ours = from_hugging_face(options_of(hf_model), tensors)
    assert torch.equal(ours.heads["mlm"].bias, hf_model.cls.predictions.decoder.bias)


def test_the_first_files_name_norms_otherwise_and_hold_every_head():
    hf_model = randomize(tiny("BertForPreTraining"), seed=2)
    old = {}
    for name, tensor in tensors_of(hf_model).items():
        name = name.replace("LayerNorm.weight", "LayerNorm.gamma")
        old[name.replace("LayerNorm.bias", "LayerNorm.beta")] = tensor
    theirs = {**options_of(hf_model), "architectures": ["BertForMaskedLM"]}
    ours = from_hugging_face(theirs, old).eval()
    inputs = padded_inputs()
    hidden, said = ours(**inputs), hf_model(**inputs)
    torch.testing.assert_close(
        ours.logits(hidden, head="nsp"), said.seq_relationship_logits, atol=1e-4, rtol=1e-4
    )
    assert to_hugging_face(ours)[0]["architectures"] == ["BertForPreTraining"]


def test_a_pooler_that_no_head_reads_is_kept():
    hf_model = randomize(tiny("BertForTokenClassification"), seed=2)
    pooler = {
        "bert.pooler.dense.weight": torch.randn(22, 22),
        "bert.pooler.dense.bias": torch.ones(22),
    }
    ours = from_hugging_face(options_of(hf_model), {**tensors_of(hf_model), **pooler})
    assert [head.kind for head in ours.spec.heads] == ["tagger", "pooler"]
    again, tensors = to_hugging_face(ours)
    assert again["architectures"] == ["BertForTokenClassification"]
    assert torch.equal(tensors["bert.pooler.dense.weight"], pooler["bert.pooler.dense.weight"])


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"position_embedding_type": "relative_key"}, "position_embedding_type"),
        ({"is_decoder": True}, "is_decoder"),
        ({"add_cross_attention": True}, "add_cross_attention"),
        ({"hidden_act": "quick_gelu"}, "hidden_act"),
        ({"num_attention_heads": 3}, "num_attention_heads"),
        ({"type_vocab_size": 0}, "type_vocab_size"),
        ({"colour": "blue"}, "colour"),
    ],
)
def test_what_is_not_supported_is_named(changes, named):
    hf_model = tiny("BertModel")
    with pytest.raises(CheckpointError, match=f'"{named}"'):
        from_hugging_face({**options_of(hf_model), **changes}, tensors_of(hf_model))


def test_five_ends_of_an_answer_are_refused():
    hf_model = tiny("BertForQuestionAnswering")
    labels = {str(i): str(i) for i in range(5)}
    with pytest.raises(CheckpointError, match='"num_labels" is 5'):
        from_hugging_face({**options_of(hf_model), "id2label": labels}, tensors_of(hf_model))


def test_every_spec_it_describes_comes_back():
    check_exports(BERT, ours_of(tiny("BertForPreTraining")).spec)


def test_a_model_unlike_any_of_theirs_is_not_exported():
    found = ours_of(tiny("BertForMaskedLM")).spec
    encoder = found.encoder.replace(norm=spec.RMSNorm())
    with pytest.raises(SpecError, match="cannot be exported"):
        to_hugging_face(build(found.replace(encoder=encoder)))
