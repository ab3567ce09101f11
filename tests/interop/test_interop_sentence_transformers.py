"""Folders of `sentence-transformers`: modules, pooling, length and prompts, from disk and the hub.

The expected vectors are those of its formulas, computed with `transformers`.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import safetensors.torch
import torch
import transformers
from hf_models import Case, hf_model
from starlette.testclient import TestClient
from test_interop_tokenizer import write_vocabulary

from trivium import load
from trivium.cli import main
from trivium.errors import CheckpointError
from trivium.interop.hub import find_folder
from trivium.serve import create_app

TYPE = "sentence_transformers.models."
MODES = {"mean": "mean_tokens", "first": "cls_token", "last": "lasttoken"}
TEXTS = ["a b", "c a b d", "d"]
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh", ":"]


def save(folder: Path, pooling: str = "mean_tokens", kinds=("Pooling", "Normalize")) -> Path:
    """Write a BERT with the files of `sentence-transformers`."""
    hf_model(Case("BertModel", {})).save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(WORDS))
    transformers.BertTokenizer(str(folder / "vocab.txt")).save_pretrained(folder)
    paths = {"": "Transformer", **{f"{i}_{kind}": kind for i, kind in enumerate(kinds, 1)}}
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": TYPE + kind}
        for i, (path, kind) in enumerate(paths.items())
    ]
    write(folder / "modules.json", modules)
    (folder / "1_Pooling").mkdir()
    pools = {f"pooling_mode_{mode}": mode == pooling for mode in (*MODES.values(), "max_tokens")}
    write(folder / "1_Pooling" / "config.json", {"word_embedding_dimension": 22, **pools})
    return folder


ACTIVATIONS = {
    "torch.nn.modules.activation.Tanh": torch.tanh,
    "torch.nn.modules.linear.Identity": lambda x: x,
    "torch.nn.modules.activation.ReLU": torch.relu,
    "torch.nn.modules.activation.GELU": torch.nn.functional.gelu,
    "torch.nn.modules.activation.SiLU": torch.nn.functional.silu,
}


def save_dense(folder: Path, shape=(22, 12), activation=None, bias=True, pickled=False, **options):
    """Write the files of a Dense module. Returns its function of vectors."""
    folder.mkdir()
    sizes = {"in_features": shape[0], "out_features": shape[1], "bias": bias}
    named = {} if activation is None else {"activation_function": activation}
    write(folder / "config.json", {**sizes, **named, **options})
    tensors = {
        "linear.weight": torch.randn(*shape[::-1], generator=torch.Generator().manual_seed(1))
    }
    if bias:
        tensors["linear.bias"] = torch.linspace(-1, 1, shape[1])
    if pickled:
        torch.save(tensors, folder / "pytorch_model.bin")
    else:
        safetensors.torch.save_file(tensors, folder / "model.safetensors")
    function = ACTIVATIONS.get(activation, torch.tanh)  # the default
    return lambda x: function(torch.nn.functional.linear(x, *tensors.values()))


def write(file: Path, content) -> None:
    file.write_text(json.dumps(content))


def expected(
    folder: Path, texts: list[str], pooling: str, length: int | None = None, normalize=True
) -> torch.Tensor:
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder).eval()
    rows = []
    for text in texts:
        inputs = tokenizer(
            text, return_tensors="pt", truncation=length is not None, max_length=length
        )
        with torch.no_grad():
            hidden = model(**inputs).last_hidden_state[0]
        rows.append({"mean": hidden.mean(0), "first": hidden[0], "last": hidden[-1]}[pooling])
    vectors = torch.stack(rows)
    return torch.nn.functional.normalize(vectors, dim=-1) if normalize else vectors


@pytest.mark.filterwarnings("ignore:.*their ends are cut")
def test_files_of_version_6(tmp_path):
    """Pooling by its name, and the length in the tokenizer's options."""
    folder = save(tmp_path / "model")
    write(folder / "1_Pooling/config.json", {"embedding_dimension": 22, "pooling_mode": "cls"})
    options = json.loads((folder / "tokenizer_config.json").read_text())
    write(folder / "tokenizer_config.json", {**options, "model_max_length": 4})
    vectors = expected(folder, TEXTS, "first", 4).float()
    torch.testing.assert_close(load(folder).embed(TEXTS), vectors, rtol=1e-4, atol=1e-5)
    write(folder / "1_Pooling/config.json", {"pooling_mode": ["cls", "max"]})
    with pytest.raises(CheckpointError, match="pooling_mode_max is not supported"):
        load(folder)


@pytest.mark.parametrize("place", ["folder", "hub"])
@pytest.mark.parametrize("pooling", MODES)
@pytest.mark.filterwarnings("ignore:.*their ends are cut")
def test_vectors_are_those_of_sentence_transformers(pooling, place, tmp_path, monkeypatch):
    folder = save(tmp_path / "model", MODES[pooling])
    write(folder / "sentence_bert_config.json", {"max_seq_length": 5})
    prompts = {"prompts": {"query": "c : ", "other": "d"}, "default_prompt_name": "query"}
    write(folder / "config_sentence_transformers.json", prompts)
    path = str(folder)
    if place == "hub":
        monkeypatch.setattr("huggingface_hub.snapshot_download", hub_of(folder, tmp_path / "cache"))
        path = "org/model"
    lm = load(path)
    vectors = expected(folder, ["c : " + text for text in TEXTS], pooling, 5)
    torch.testing.assert_close(lm.embed(TEXTS), vectors.float(), rtol=1e-4, atol=1e-5)
    # Saved and exported it reads the same.
    for again in (lm.save(tmp_path / "own"), lm.save_hf(tmp_path / "hf")):
        torch.testing.assert_close(load(again).embed(TEXTS), vectors.float(), rtol=1e-4, atol=1e-5)
    assert (
        json.loads((tmp_path / "hf/sentence_bert_config.json").read_text())["max_seq_length"] == 5
    )


def hub_of(folder: Path, cache: Path):
    """Return a double of `snapshot_download` that copies the files that patterns name."""

    def snapshot_download(name, *, revision, allow_patterns, ignore_patterns):
        from huggingface_hub.utils import filter_repo_objects

        files = [str(f.relative_to(folder)) for f in folder.rglob("*") if f.is_file()]
        for file in filter_repo_objects(
            files, allow_patterns=allow_patterns, ignore_patterns=ignore_patterns
        ):
            (cache / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(folder / file, cache / file)
        return str(cache)

    return snapshot_download


def again_everywhere(lm, tmp_path: Path):
    """Return the model saved, and exported, each twice."""
    for overwrite in (False, True):
        yield load(lm.save(tmp_path / "own", overwrite=overwrite))
        yield load(lm.save_hf(tmp_path / "hf", overwrite=overwrite))


PUBLISHED = [
    ("DistilBertModel", "vocab.txt", "DistilBertTokenizer", {"dim": 22}),
    ("MPNetModel", "vocab.txt", "MPNetTokenizer", {}),
    ("XLMRobertaModel", "spiece.model", "XLMRobertaTokenizer", {"type_vocab_size": 1}),
    ("CamembertModel", "spiece.model", "CamembertTokenizer", {"type_vocab_size": 1}),
    ("NomicBertModel", "vocab.txt", "BertTokenizer", {"hidden_size": 22, "num_attention_heads": 1}),
]


@pytest.mark.parametrize("saved", [True, False])
@pytest.mark.parametrize(("name", "form", "kind", "changes"), PUBLISHED)
@pytest.mark.filterwarnings("ignore:.*their ends are cut")
def test_vectors_of_other_families(name, form, kind, changes, saved, tmp_path):
    """With the vocabulary that was published, or the `tokenizer.json` that was saved later."""
    folder = save(tmp_path / "model")
    for file in ("vocab.txt", "tokenizer.json", "tokenizer_config.json", "config.json"):
        (folder / file).unlink(missing_ok=True)
    hf_model(Case(name, {"vocab_size": 331, **changes})).save_pretrained(folder)
    write_vocabulary(folder, form, kind)
    if saved:
        transformers.AutoTokenizer.from_pretrained(folder).save_pretrained(folder)
    write(folder / "sentence_bert_config.json", {"max_seq_length": 9})
    texts = ["the weather was cloudy", "today", "yesterday it was rainy, and today it's not"]
    vectors = expected(folder, texts, "mean", 9).float()
    lm = load(folder)
    for one in (lm, *again_everywhere(lm, tmp_path)):
        torch.testing.assert_close(one.embed(texts), vectors, rtol=1e-4, atol=1e-5)
    again = expected(tmp_path / "hf", texts, "mean", 9).float()
    torch.testing.assert_close(again, vectors, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("pooling", MODES)
def test_without_normalize_vectors_keep_their_length(pooling, tmp_path):
    lm = load(save(tmp_path / "model", MODES[pooling], kinds=("Pooling",)))
    vectors = expected(tmp_path / "model", TEXTS, pooling, normalize=False).float()
    scaled = expected(tmp_path / "model", TEXTS, pooling).float()
    for one in (lm, *again_everywhere(lm, tmp_path)):
        torch.testing.assert_close(one.embed(TEXTS), vectors, rtol=1e-4, atol=1e-5)
        normalized = one.embed(TEXTS, normalize=True)
        torch.testing.assert_close(normalized, scaled, rtol=1e-4, atol=1e-5)
    modules = json.loads((tmp_path / "hf/modules.json").read_text())
    assert [one["type"].split(".")[-1] for one in modules] == ["Transformer", "Pooling"]
    with TestClient(create_app({"m": str(tmp_path / "model")})) as client:
        reply = client.post("/v1/embeddings", json={"model": "m", "input": TEXTS}).json()
    served = torch.tensor([one["embedding"] for one in reply["data"]])
    torch.testing.assert_close(served, vectors, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("place", ["folder", "hub"])
@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("pickled", [True, False])
@pytest.mark.parametrize("activation", [None, *ACTIVATIONS])
def test_dense_modules_in_order(activation, pickled, normalize, place, tmp_path, monkeypatch):
    """LaBSE has one with tanh, sentence-t5 one without a bias and an activation."""
    kinds = ("Pooling", "Dense", "Dense", *["Normalize"] * normalize)
    folder = save(tmp_path / "model", kinds=kinds)
    first = save_dense(folder / "2_Dense", (22, 12), activation, pickled=pickled)
    second = save_dense(
        folder / "3_Dense",
        (12, 30),
        "torch.nn.modules.linear.Identity",
        bias=False,
        pickled=pickled,
        module_input_name="sentence_embedding",
        module_output_name=None,
    )
    vectors = second(first(expected(folder, TEXTS, "mean", normalize=False).float()))
    vectors = torch.nn.functional.normalize(vectors, dim=-1) if normalize else vectors
    path = str(folder)
    if place == "hub":
        monkeypatch.setattr("huggingface_hub.snapshot_download", hub_of(folder, tmp_path / "cache"))
        path = "org/model"
    lm = load(path)
    assert lm.vector_size == 30
    for one in (lm, *again_everywhere(lm, tmp_path)):
        scale = float(vectors.norm(dim=-1).max())  # rounding grows with the vectors
        torch.testing.assert_close(one.embed(TEXTS), vectors, rtol=1e-4, atol=1e-5 * scale)
    modules = json.loads((tmp_path / "hf/modules.json").read_text())
    assert tuple(one["type"].split(".")[-1] for one in modules) == ("Transformer", *kinds)
    for module in ("2_Dense", "3_Dense"):
        before, after = (
            json.loads((root / module / "config.json").read_text())
            for root in (folder, tmp_path / "hf")
        )
        assert before.items() - after.items() <= {
            ("module_input_name", "sentence_embedding"),
            ("module_output_name", None),
        }


def test_dense_modules_in_the_command_line_and_the_server(tmp_path, capsys):
    folder = save(tmp_path / "model", kinds=("Pooling", "Dense"))
    dense = save_dense(folder / "2_Dense")
    vectors = dense(expected(folder, TEXTS, "mean", normalize=False).float())
    assert main(["embed", str(folder), *TEXTS, "--json"]) == 0
    lines = capsys.readouterr().out.splitlines()
    printed = torch.tensor([json.loads(line)["vector"] for line in lines])
    torch.testing.assert_close(printed, vectors, rtol=1e-4, atol=1e-4)
    with TestClient(create_app({"m": str(folder)})) as client:
        request = {"model": "m", "input": TEXTS, "dimensions": 12}
        reply = client.post("/v1/embeddings", json=request).json()
        served = torch.tensor([one["embedding"] for one in reply["data"]])
        torch.testing.assert_close(served, vectors, rtol=1e-4, atol=1e-5)
        assert client.post("/v1/embeddings", json=request | {"dimensions": 22}).status_code == 400


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"activation": "torch.nn.modules.activation.Mish"}, "activation_function = 'torch.nn.mod"),
        ({"activation": "mine.Tanh"}, "activation_function = 'mine.Tanh' is not supported"),
        ({"use_residual": True}, "use_residual = True is not supported"),
        ({"module_output_name": "other"}, "module_output_name = 'other' is not supported"),
        ({"shape": (21, 12)}, "must be {'linear.weight': \\[12, 22\\]"),
    ],
)
def test_dense_modules_that_are_not_supported_are_refused_by_name(options, message, tmp_path):
    folder = save(tmp_path / "model", kinds=("Pooling", "Dense", "Normalize"))
    save_dense(folder / "2_Dense", **options)
    with pytest.raises(CheckpointError, match=message):
        load(folder)


def test_unknown_modules_and_poolings_are_refused_by_name(tmp_path, monkeypatch):
    for kinds, message in (
        (("Pooling", "Normalize", "Dense"), "the module 'Dense' in '3_Dense' is not supported"),
        (("Pooling", "Whitening"), "the module 'Whitening'"),
    ):
        folder = save(tmp_path / kinds[-1], kinds=kinds)
        with pytest.raises(CheckpointError, match=message):
            load(folder)
        monkeypatch.setattr("huggingface_hub.snapshot_download", hub_of(folder, tmp_path / "cache"))
        with pytest.raises(CheckpointError, match=message):
            find_folder("org/model")
    with pytest.raises(CheckpointError, match="pooling_mode_max_tokens is not supported"):
        load(save(tmp_path / "max", "max_tokens"))


def test_an_export_has_the_trained_length(tmp_path):
    lm = load(save(tmp_path / "model"))
    lm.settings.config["trained_length"] = 7  # type: ignore[index]
    exported = lm.save_hf(tmp_path / "hf")
    options = json.loads((exported / "sentence_bert_config.json").read_text())
    assert options["max_seq_length"] == 7
