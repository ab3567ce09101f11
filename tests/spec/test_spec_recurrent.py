"""Descriptions of recurrent and n-gram models: published sizes, and what cannot be."""

from __future__ import annotations

import pytest

from trivium import spec
from trivium.errors import SpecError
from trivium.presets import presets


def test_the_n_gram_model_has_the_parameters_of_its_paper():
    """|V| (1 + nm + h) + h (1 + (n-1) m) (Bengio et al. 2003), and our vector before a text."""
    described = presets["ngram-ap-news"]
    assert isinstance(described, spec.NGramSpec)
    v, n, m, h = described.vocab_size, described.order, described.d_model, described.d_hidden
    assert (v, n, m, h) == (17_964, 6, 100, 60)
    assert described.num_parameters == v * (1 + n * m + h) + h * (1 + (n - 1) * m) + m


@pytest.mark.parametrize(("name", "millions"), [("lstm-medium", 19.8), ("lstm-large", 66.0)])
def test_the_penn_treebank_models_have_their_published_sizes(name, millions):
    """20 and 66 million."""
    assert presets[name].num_parameters / 1e6 == pytest.approx(millions, abs=0.05)


@pytest.mark.parametrize("size", ["tiny", "mini"])
def test_small_sizes_are_those_of_the_transformer(size):
    expected = presets[f"llama-{size}"].num_matrix_parameters
    kinds = ("rnn", "lstm", "gru", "birnn", "bilstm", "bigru", "elmo", "ngram")
    for kind in kinds:
        assert presets[f"{kind}-{size}"].num_matrix_parameters == pytest.approx(expected, rel=0.45)


def test_families_follow_from_the_direction():
    assert presets["lstm-tiny"].family == presets["elmo-tiny"].family == "decoder-only"
    assert presets["ngram-tiny"].family == "decoder-only"
    assert presets["birnn-tiny"].family == "encoder-only"
    assert presets["lstm-tiny"].max_length is None


def rnn(**changes: object) -> spec.RNNSpec:
    base = spec.RNNSpec(vocab_size=43, d_model=22, cell="lstm", d_hidden=17, num_layers=2)
    return base.replace(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"direction": "both", "heads": (spec.LMHead(tied=True),)}, "sees the next token"),
        ({"heads": (spec.MLMHead(),)}, "both sides"),
        ({"direction": "two-way", "heads": (spec.TaggerHead(num_labels=3),)}, "lm head only"),
        ({"heads": (spec.LMHead(tied=True), spec.LMHead(tied=False))}, "at most one"),
        ({"cell": "peephole"}, "cell"),
        ({"num_layers": 0}, "num_layers"),
    ],
)
def test_a_description_that_contradicts_itself_is_refused(changes, message):
    with pytest.raises(SpecError, match=message):
        rnn(**changes)


def test_the_kind_decides_how_a_description_is_read():
    transformer = presets["gpt2-tiny"]
    data = transformer.to_dict()
    assert spec.spec_from_dict(data) == transformer
    del data["kind"]
    assert spec.spec_from_dict(data) == transformer
    for described in (rnn(), presets["ngram-tiny"]):
        assert spec.spec_from_dict(described.to_dict()) == described
    with pytest.raises(SpecError, match='Did you mean "rnn"'):
        spec.spec_from_dict({"kind": "rrnn"})
    with pytest.raises(SpecError, match=r"RNN.*d_hidden"):
        spec.spec_from_dict({**rnn().to_dict(), "d_hidden": -1})
    with pytest.raises(SpecError, match=r"n-gram.*order"):
        spec.spec_from_dict({**presets["ngram-tiny"].to_dict(), "order": 1})


def test_work_is_six_operations_a_weight():
    described = rnn(heads=(spec.LMHead(tied=True),))
    layers = 4 * 17 * (22 + 17) + 4 * 17 * (17 + 17) + 17 * 22
    assert described.num_matrix_parameters == layers
    assert described.flops_per_token(128) == 6 * (layers + 43 * 22)
    two_way = described.replace(direction="two-way")
    assert two_way.flops_per_token(128) == 2 * described.flops_per_token(128)
