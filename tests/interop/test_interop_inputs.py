"""Texts of Hugging Face folders: the ids, type ids and outputs of `transformers`."""

from __future__ import annotations

import json

import pytest
import tokenizers
import torch
from hf_models import Case, hf_model
from their_tokenizers import TEXT, ours
from tokenizers import processors

import trivium
from trivium.evaluate.perplexity import perplexity
from trivium.inference.text_model import prompt_ids
from trivium.objectives.seq2seq import pair_rows

transformers = pytest.importorskip("transformers")

# The post-processors of XLNet, Qwen3-Embedding (an end other than its eos), Llama and GPT-2.
TEMPLATES = {
    "xlnet": ("$A:0 <unk>:0 <mask>:2", "$A:0 <unk>:0 $B:1 <unk>:1 <mask>:2"),
    "other-end": ("$A <mask>", "$A $B:1 <mask>"),
    "start": ("<s> $A", "<s> $A <s>:1 $B:1"),
    "two-ends": ("$A <s> </s>", "$A <s> $B:1 <s>:1 </s>"),
    "empty": ("$A", "$A $B:1"),
    "byte-level": (),
    "nothing": (),
}
WITHOUT_MASK = ["start", "two-ends", "empty", "byte-level", "nothing"]
PAIR = (TEXT[3], TEXT[0][:20])


def save_model(folder, name: str, template: str):
    """Save a random model of `transformers` whose tokenizer has a template; return the model."""
    trained = ours("llama")
    backend = tokenizers.Tokenizer.from_str(trained.to_json())
    names = ("<s>", "</s>", "<unk>", "<mask>")
    if template == "byte-level":
        backend.post_processor = processors.ByteLevel(trim_offsets=False)
    elif template == "nothing":
        content = {**json.loads(backend.to_str()), "post_processor": None}
        backend = tokenizers.Tokenizer.from_str(json.dumps(content))
    else:
        single, pair = TEMPLATES[template]
        backend.post_processor = processors.TemplateProcessing(
            single=single, pair=pair, special_tokens=[(n, backend.token_to_id(n)) for n in names]
        )
    roles = {"cls": "<mask>", "sep": "<unk>"} if template == "xlnet" else {}
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        pad_token="<pad>",
        mask_token="<mask>",
        **{f"{role}_token": token for role, token in roles.items()},
    )
    options = {"pad_token_id": 0, "vocab_size": trained.vocab_size}
    lengths = {} if name.startswith(("XLNet", "T5")) else {"max_position_embeddings": 301}
    model = hf_model(Case(name, {**options, **lengths}))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model, tokenizer


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize(
    "name",
    [
        "XLNetForSequenceClassification",
        "BertForSequenceClassification",
        "RobertaForSequenceClassification",
        "AlbertForSequenceClassification",
        "ElectraForSequenceClassification",
        "ModernBertForSequenceClassification",
        "DebertaForSequenceClassification",
        "DebertaV2ForSequenceClassification",
        "LlamaForSequenceClassification",
    ],
)
def test_a_classifier_reads_texts_and_pairs_as_transformers_does(name, template, tmp_path):
    model, tokenizer = save_model(tmp_path, name, template)
    lm = trivium.load(tmp_path)
    for text, pair in ((TEXT[0], None), (TEXT[2], None), PAIR):
        theirs = tokenizer(text, pair, return_tensors="pt", return_token_type_ids=True)
        (one,) = lm.text_inputs([(text, pair)])
        assert one.ids == theirs["input_ids"][0].tolist()
        assert one.type_ids == theirs["token_type_ids"][0].tolist()
        if name.startswith(("Llama", "ModernBert")):
            del theirs["token_type_ids"]
        with torch.no_grad():
            expected = model(**theirs).logits[0].softmax(-1)
        given = text if pair is None else (text, pair)
        scores = lm.classify([given])[0]
        torch.testing.assert_close(max(expected).item(), scores.score, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_decoder_of_sentence_transformers_pools_the_last_token_of_its_template(
    template, tmp_path
):
    model, tokenizer = save_model(tmp_path, "LlamaModel", template)
    (tmp_path / "1_Pooling").mkdir()
    modes = {"word_embedding_dimension": 24, "pooling_mode_lasttoken": True}
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps(modes))
    lm = trivium.load(tmp_path)
    for text in (TEXT[0], TEXT[2]):
        theirs = tokenizer(text, return_tensors="pt", return_token_type_ids=False)
        with torch.no_grad():
            expected = model(**theirs).last_hidden_state[0, -1]
        torch.testing.assert_close(lm.embed(text, normalize=False), expected, rtol=1e-4, atol=1e-4)


def test_xlnet_tags_and_vectors_have_the_types_of_its_template(tmp_path):
    model, tokenizer = save_model(tmp_path / "tags", "XLNetForTokenClassification", "xlnet")
    lm = trivium.load(tmp_path / "tags")
    words = ["the", "weather", "was", "cloudy"]
    theirs = tokenizer(words, is_split_into_words=True, return_tensors="pt")
    theirs["token_type_ids"] = tokenizer(
        " ".join(words), return_tensors="pt", return_token_type_ids=True
    )["token_type_ids"]
    with torch.no_grad():
        probabilities = model(**theirs).logits[0].softmax(-1)
    first = [theirs.word_ids(0).index(number) for number in range(len(words))]
    tags = lm.tag([words])[0]
    for position, tag in zip(first, tags, strict=True):
        assert tag.score == pytest.approx(probabilities[position].max().item(), rel=1e-4)
    model, tokenizer = save_model(tmp_path / "vectors", "XLNetModel", "xlnet")
    theirs = tokenizer(TEXT[0], return_tensors="pt", return_token_type_ids=True)
    with torch.no_grad():
        expected = model(**theirs).last_hidden_state[0].mean(0)
    lm = trivium.load(tmp_path / "vectors")
    torch.testing.assert_close(
        lm.embed(TEXT[0], normalize=False, pooling="mean"), expected, rtol=1e-4, atol=1e-4
    )


def log_probabilities(model, ids, position):
    """Those of `transformers` of the token at a position."""
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0, position].log_softmax(-1)


@pytest.mark.parametrize("template", WITHOUT_MASK)
@pytest.mark.parametrize(
    "name",
    [
        "BertForMaskedLM",
        "RobertaForMaskedLM",
        "LongformerForMaskedLM",
        "BigBirdForMaskedLM",
        "AlbertForMaskedLM",
        "ElectraForMaskedLM",
        "ModernBertForMaskedLM",
        "DebertaForMaskedLM",
        "DebertaV2ForMaskedLM",
    ],
)
def test_masks_scores_and_vectors_of_an_encoder_have_the_tokens_of_its_template(
    name, template, tmp_path
):
    model, tokenizer = save_model(tmp_path / "hf", name, template)
    lm = trivium.load(tmp_path / "hf")
    lm.save(tmp_path / "own")
    lm.save_hf(tmp_path / "again")
    text = "the weather <mask> cloudy"
    ids = tokenizer(text)["input_ids"]
    expected = log_probabilities(model, ids, ids.index(tokenizer.mask_token_id)).exp()
    for one in (lm, trivium.load(tmp_path / "own"), trivium.load(tmp_path / "again")):
        scores = torch.tensor([fill.score for fill in one.fill_mask(text, top_k=7)])
        torch.testing.assert_close(scores, expected.topk(7).values, rtol=1e-4, atol=1e-6)
    again = transformers.AutoTokenizer.from_pretrained(tmp_path / "again")
    assert again(*PAIR)["input_ids"] == tokenizer(*PAIR)["input_ids"]
    # Each token masked in turn.
    ids, total = tokenizer("the weather")["input_ids"], 0.0
    plain = tokenizer("the weather", add_special_tokens=False)["input_ids"]
    first = next(i for i in range(len(ids)) if ids[i : i + len(plain)] == plain)
    for position in range(first, first + len(plain)):
        masked = [*ids]
        masked[position] = tokenizer.mask_token_id
        total += log_probabilities(model, masked, position)[ids[position]].item()
    assert lm.score("the weather") == pytest.approx(total, rel=1e-4)
    assert perplexity(lm, ["the weather"]).nats == pytest.approx(-total, rel=1e-4)
    with torch.no_grad():
        states = model(torch.tensor([ids]), output_hidden_states=True).hidden_states[-1]
    vector = lm.embed("the weather", normalize=False, pooling="mean")
    torch.testing.assert_close(vector, states[0].mean(0), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("template", WITHOUT_MASK)
@pytest.mark.parametrize(
    "name", ["T5ForConditionalGeneration", "BartForConditionalGeneration", "MarianMTModel"]
)
def test_an_encoder_decoder_reads_sources_with_the_tokens_of_its_template(name, template, tmp_path):
    model, tokenizer = save_model(tmp_path / "hf", name, template)
    lm = trivium.load(tmp_path / "hf")
    lm.save(tmp_path / "own")
    source, target = "the weather was cloudy", "it is rainy"
    ids = tokenizer(source)["input_ids"]
    for one in (lm, trivium.load(tmp_path / "own")):
        assert prompt_ids(one, source) == ids
        assert pair_rows(one, [(source, target)])[0]["input_ids"] == [ids]
    labels = tokenizer(target, add_special_tokens=False)["input_ids"]
    start = model.config.decoder_start_token_id
    with torch.no_grad():
        logits = model(
            torch.tensor([ids]), decoder_input_ids=torch.tensor([[start, *labels[:-1]]])
        ).logits[0]
    rows = logits.log_softmax(-1)
    total = sum(rows[place, label].item() for place, label in enumerate(labels))
    assert lm.score(target, context=source) == pytest.approx(total, rel=1e-4)
    with torch.no_grad():
        beams = model.generate(torch.tensor([ids]), num_beams=2, max_new_tokens=7, do_sample=False)
    expected = tokenizer.decode(beams[0], skip_special_tokens=True)
    assert lm.translate(source, num_beams=2, max_new_tokens=7).strip() == expected.strip()
