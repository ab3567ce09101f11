"""Marian in and out of Hugging Face."""

from __future__ import annotations

import pytest
import torch
from hugging_face import check_family, options_of, our_answers, ours_of, randomize, their_answers
from translation import END, PAD, START, padded_pairs

from trivium import spec
from trivium.errors import CheckpointError, SpecError
from trivium.interop import from_hugging_face, to_hugging_face
from trivium.interop.config import Config
from trivium.interop.marian import MARIAN

transformers = pytest.importorskip("transformers")

VOCABULARY, SOURCE = 43, 31
CONFIG = {
    "vocab_size": VOCABULARY,
    "d_model": 30,
    "encoder_layers": 3,
    "decoder_layers": 2,
    "encoder_attention_heads": 5,
    "decoder_attention_heads": 3,
    "encoder_ffn_dim": 29,
    "decoder_ffn_dim": 37,
    "max_position_embeddings": 17,
    "activation_function": "swish",
    "scale_embedding": True,
    "pad_token_id": PAD,
    "eos_token_id": END,
    "decoder_start_token_id": START,
    "forced_eos_token_id": None,
}
SEPARATE = {
    "vocab_size": SOURCE,
    "decoder_vocab_size": VOCABULARY,
    "share_encoder_decoder_embeddings": False,
}


def config_of(**changes):
    return transformers.MarianConfig(**{**CONFIG, **changes})


def translator(**changes):
    """Theirs, whose bias of logits is no parameter and would stay at zero."""
    hf = transformers.MarianMTModel(config_of(**changes))
    hf.final_logits_bias.normal_(generator=torch.Generator().manual_seed(7))
    return hf


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("width", [30, 45])
def test_one_vocabulary(scaled, width):
    """In an odd width the sines are one more than the cosines."""
    hf = translator(scale_embedding=scaled, d_model=width)
    ours = check_family(hf, padded_pairs(VOCABULARY))
    assert ours.spec.heads == (spec.LMHead(tied=True, bias=True),)
    assert ours.spec.source_vocab_size is None
    assert torch.equal(ours.state_dict()["heads.lm.bias"], hf.final_logits_bias[0])


def test_the_body():
    check_family(transformers.MarianModel(config_of()), padded_pairs(VOCABULARY))


@pytest.mark.parametrize("tied", [False, True])
def test_two_vocabularies(tied):
    hf = translator(**SEPARATE, tie_word_embeddings=tied)
    ours = check_family(hf, padded_pairs(VOCABULARY, SOURCE))
    assert (ours.spec.source_vocab_size, ours.spec.vocab_size) == (SOURCE, VOCABULARY)
    assert ours.spec.heads == (spec.LMHead(tied=tied, bias=True),)


def test_two_vocabularies_in_the_body():
    hf = transformers.MarianModel(config_of(**SEPARATE))
    check_family(hf, padded_pairs(VOCABULARY, SOURCE))


def test_long_sentences_have_the_positions_of_their_table():
    length = 509
    hf = randomize(translator(max_position_embeddings=length), seed=5)
    ids = torch.randint(START + 1, VOCABULARY, (1, length))
    pairs = {"input_ids": ids, "decoder_input_ids": ids.flip(1)}
    with torch.no_grad():
        [mine], [other] = our_answers(ours_of(hf), pairs), their_answers(hf, pairs)
    assert (mine - other).abs().max() < 1e-3 * other.abs().max()


def test_a_file_without_a_bias_and_with_copies():
    hf = randomize(translator(), seed=1)
    options, tensors = options_of(hf), dict(hf.state_dict())
    assert {"model.encoder.embed_positions.weight", "lm_head.weight"} <= tensors.keys()
    del tensors["final_logits_bias"], tensors["model.shared.weight"]
    options |= {"add_bias_logits": False, "static_position_embeddings": True, "_num_labels": 3}
    options |= {"extra_pos_embeddings": VOCABULARY, "bad_words_ids": [[0]], "num_hidden_layers": 3}
    model = from_hugging_face(options, tensors)
    assert model.spec.heads == (spec.LMHead(tied=True),)
    assert torch.equal(model.tokens.weight, hf.model.shared.weight)
    assert "final_logits_bias" not in to_hugging_face(model)[1]
    tensors["lm_head.weight"] = tensors["lm_head.weight"] + 1
    with pytest.raises(CheckpointError, match="differs"):
        from_hugging_face(options, tensors)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("normalize_before", True),
        ("normalize_embedding", True),
        ("static_position_embeddings", False),
        ("tie_word_embeddings", False),
        ("decoder_vocab_size", 41),
        ("activation_function", "mish"),
        ("colour", "blue"),
    ],
)
def test_refuses_what_it_does_not_know(option, value):
    hf = translator()
    with pytest.raises(CheckpointError, match=f"{option}.*{value}"):
        from_hugging_face({**options_of(hf), option: value}, hf.state_dict())


def base_spec(**changes) -> spec.ModelSpec:
    config = Config(options_of(transformers.MarianModel(config_of())))
    return MARIAN.read(config, "MarianModel", ()).replace(**changes)


@pytest.mark.parametrize(
    "heads",
    [
        (),
        (spec.LMHead(tied=True),),
        (spec.LMHead(tied=True, bias=True),),
        (spec.LMHead(tied=False, bias=True),),
        (spec.LMHead(tied=False),),
    ],
)
@pytest.mark.parametrize("source", [None, SOURCE, VOCABULARY])
def test_what_is_written_is_what_is_read(heads, source):
    model = base_spec(heads=heads, source_vocab_size=source)
    assert MARIAN.describes(model)
    if source is None and heads and not heads[0].tied:
        with pytest.raises(SpecError, match="Marian has no"):
            MARIAN.write(model)
        return
    architecture, options = MARIAN.write(model)
    names = {row.theirs for row in MARIAN.table(model, architecture)}
    assert MARIAN.read(Config({"model_type": "marian", **options}), architecture, names) == model


def test_describes_no_more_than_the_config_can_say():
    model = base_spec()
    embedding, decoder = model.embedding, model.decoder
    assert decoder is not None
    halves = spec.Sinusoidal(layout="halves", max_length=17)
    assert embedding.positions == halves
    placed = [
        halves.replace(layout="interleaved"),
        halves.replace(max_length=None),
        halves.replace(base=1e3),
        spec.Learned(max_length=17, offset=2),
    ]
    others = [
        model.replace(encoder=None),
        *(model.replace(embedding=embedding.replace(positions=p)) for p in placed),
        model.replace(embedding=embedding.replace(norm=spec.LayerNorm())),
        model.replace(embedding=embedding.replace(scale=2.0)),
        model.replace(decoder=decoder.replace(norm_order="pre")),
        model.replace(decoder=decoder.replace(norm=spec.RMSNorm())),
    ]
    for other in others:
        assert not MARIAN.describes(other), other
