"""Chat: prompts with responses, conversations, loss on responses only."""

from __future__ import annotations

import json

import pytest
from overfit_tasks import overfit, untrained
from their_tokenizers import ours, theirs

from trivium.data.batch import IGNORE_INDEX
from trivium.errors import DataError, RecipeError
from trivium.inference.request import GenerationRequest
from trivium.inference.sampling_params import SamplingParams
from trivium.inference.text_model import prompt_ids
from trivium.interop.settings import Settings
from trivium.language_model import LanguageModel
from trivium.models import build
from trivium.objectives.chat import Chat, Conversation
from trivium.presets import presets
from trivium.serve.chat_completion import _make_turn
from trivium.serve.chat_schemas import ChatMessage, ChatRequest
from trivium.text import chat_template
from trivium.text.chat_template import PLAIN_TEMPLATE, ChatTemplate
from trivium.train import defaults
from trivium.train.recipe_loading import build_recipe

pytestmark = pytest.mark.usefixtures("double_precision")


def conversation(*contents: str, system: str = ""):
    roles = ["user", "assistant"] * len(contents)
    messages = [{"role": role, "content": text} for role, text in zip(roles, contents)]
    head = [{"role": "system", "content": system}] if system else []
    return Conversation((*head, *messages), "x.jsonl, line 1")


EXAMPLES = [
    conversation("how are you", "fine thanks", "and the cat", "asleep now"),
    conversation("what is red", "a rose"),
    conversation("hi", "ho"),
    conversation("what is blue", "the sky", system="be brief"),
]


def read(folder, *records, **options):
    path = folder / "a.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in records), encoding="utf-8")
    return list(Chat(**options).read([str(path)]))


def test_reads_prompts_and_conversations(tmp_path):
    alpaca = {"instruction": "add", "input": "1 and 2", "output": "3"}
    sharegpt = {"conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "ho"}]}
    both = {"prompt": "p", "response": "r", "system": "be kind"}
    first, second, third = read(tmp_path, alpaca, sharegpt, both)
    assert [m["content"] for m in first.messages] == ["add\n\n1 and 2", "3"]
    assert [m["role"] for m in second.messages] == ["user", "assistant"]
    assert third.messages[0] == {"role": "system", "content": "be kind"}
    assert (first.group_key, third.group_key) == ("add\n\n1 and 2", "be kind\np")
    named = read(tmp_path, {"a": "x", "b": "y"}, prompt_field="a", response_field="b")
    assert named[0].messages[1]["content"] == "y"


def test_hostile_files_are_one_clear_error(tmp_path):
    user = {"role": "user", "content": "x"}
    for record, message in (
        ({"messages": "x"}, r'"messages" of .*line 1 is a string, not a list of messages'),
        ({"messages": []}, "is empty, not a list"),
        ({"messages": [user]}, "no message of the assistant"),
        ({"messages": ["x"]}, "message 1 is a string, not an object"),
        ({"messages": [{"role": "asistant", "content": "x"}]}, 'Did you mean "assistant"'),
        ({"messages": [{"role": "user", "content": ""}]}, "message 1 is blank"),
        ({"messages": [{"role": "user"}]}, 'message 1 has no column "content"'),
        ({"prompt": "x", "response": " "}, '"response" of .*line 1 is blank'),
        ({"x": 1}, 'no column for the conversation .* it has "x"\\.'),
    ):
        with pytest.raises(DataError, match=message):
            read(tmp_path, record)
    with pytest.raises(DataError, match=r"no column for the response.*objective.response_field"):
        read(tmp_path, {"a": "b"}, prompt_field="a")
    with pytest.raises(RecipeError, match='"chat" trains decoder-only models'):
        Chat().heads(presets["t5-tiny"])


def test_labels_are_the_responses_and_their_ends():
    objective, lm = untrained(Chat(), EXAMPLES, "gpt2")
    rows = objective.encode(EXAMPLES, lm).take([0])
    target = rows.labels[rows.labels != IGNORE_INDEX].tolist()
    said = lm.tokenizer.decode(target)
    for words in ("fine thanks", "asleep now"):
        assert words in said
    for words in ("how are you", "what is"):
        assert words not in said
    assert target.count(lm.tokenizer.eos_id) == said.count("thanks") + said.count(
        "now"
    ) + said.count("rose") + said.count("sky")
    everything = Chat(responses_only=False).encode(EXAMPLES, lm).take([0])
    assert (everything.labels != IGNORE_INDEX).sum() > len(target)
    shifted = rows.input_ids[:, 1:][rows.labels[:, :-1] != IGNORE_INDEX]
    assert shifted.tolist() == target


def test_what_a_template_marks_is_labelled_with_its_end():
    """`{% generation %}`: all tokens from the first to the last, the end token included."""
    objective, lm = untrained(Chat(), EXAMPLES, "gpt2")
    template = (
        "{%- for m in messages %}{% if m.role == 'assistant' %}A: {% generation %}"
        "{{ m.content }}<|endoftext|>{% endgeneration %} {% else %}{{ m.content }} {% endif %}"
        "{%- endfor %}"
    )
    object.__setattr__(lm.settings, "chat_template", template)
    (one,) = EXAMPLES[:1]
    rows = objective.encode([one], lm).take([0])
    labels = rows.labels[rows.labels != IGNORE_INDEX].tolist()
    end = lm.tokenizer.eos_id
    ids = [
        [*lm.tokenizer.encode_ids_batch([text])[0], end] for text in ("fine thanks", "asleep now")
    ]
    assert labels == [*ids[0], *ids[1]]


def test_a_step_has_as_many_conversations_as_it_says():
    many = EXAMPLES * 20
    objective, lm = untrained(Chat(), many, "gpt2")
    assert len(objective.encode(many, lm)) == len(many)
    tree = {"model": {"preset": "gpt2-tiny"}, "objective": {"kind": "chat"}}
    recipe = build_recipe({**tree, "data": {"paths": ["x.jsonl"]}})
    steps = defaults.complete(recipe, lm.spec, num_examples=16_000).train
    assert (steps.batch_examples, steps.eval_every) == (16, 500)


def test_overfits_and_answers():
    objective, lm, loss = overfit(Chat(), EXAMPLES, "gpt2", lr=3e-3)
    assert loss < 0.1
    assert objective.evaluate(lm, EXAMPLES).values["perplexity"] < 1.1
    prompt = "User: what is red Assistant:"
    assert lm.generate(prompt, temperature=0.0, max_new_tokens=3).split()[:2] == ["a", "rose"]
    assert objective.suggest_command("runs/x", lm) == "chat runs/x"
    metrics = objective.evaluate(lm, [*EXAMPLES] * 20)
    answered = objective.add_generations(lm, metrics)
    assert answered.values == metrics.values
    alone = Conversation(({"role": "assistant", "content": "hi"},), "x")
    metrics = objective.evaluate(lm, [alone])
    assert objective.add_generations(lm, metrics).predictions == metrics.predictions
    for row, has in zip(answered.predictions, [*[True] * 16, False], strict=False):
        assert row.get("predicted") == (row["messages"][-1]["content"] if has else None)
    # The space before an answer is the prompt's: the answer comes back as it was learned.
    ids = lm.conversation_ids([{"role": "user", "content": "what is red"}])
    request = GenerationRequest(ids, SamplingParams(temperature=0.0), answers=True)
    engine = lm.engine()
    engine.add(request)
    list(engine.run())
    assert request.text == "a rose"


WITH_BOS = "{{ bos_token }}" + PLAIN_TEMPLATE
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_a_conversation_begins_alike_in_training_serving_and_generation(family):
    one = conversation("The weather", "was cloudy", system="notes")
    *messages, _ = one.messages
    tokenizer, hf = ours(family), theirs(family)
    spec = presets["llama-tiny"].replace(vocab_size=tokenizer.vocab_size)
    lm = LanguageModel(spec, build(spec, seed=0), tokenizer)
    for template in (PLAIN_TEMPLATE, WITH_BOS, CHATML):
        lm.settings = Settings(chat_template=template)
        ids = lm.conversation_ids(messages)
        rendered = ChatTemplate.of(template, tokenizer).render(messages, add_generation_prompt=True)
        assert prompt_ids(lm, rendered) == ids
        served = [ChatMessage(**message) for message in messages]
        assert _make_turn(lm, ChatRequest(model="lm", messages=served)).prompt_ids == ids
        row = Chat().encode([one], lm).take([0]).input_ids[0].tolist()
        assert row[: len(ids)] == ids
        expected = hf.apply_chat_template(
            messages, chat_template=template, add_generation_prompt=True, return_dict=False
        )
        begins = not tokenizer.prefix_ids or template == WITH_BOS
        assert ids == (expected if begins else [*tokenizer.prefix_ids, *expected])


def test_a_template_is_compiled_once_not_for_every_conversation(monkeypatch):
    many = [conversation("hi", "ho")] * 300 + EXAMPLES
    objective, lm = untrained(Chat(), many, "gpt2")
    compiled = []
    environment = chat_template.ImmutableSandboxedEnvironment
    monkeypatch.setattr(
        chat_template,
        "ImmutableSandboxedEnvironment",
        lambda **options: compiled.append(1) or environment(**options),
    )
    lm.settings = Settings(chat_template=PLAIN_TEMPLATE + "{# another #}")
    objective.encode(EXAMPLES, lm)
    assert compiled == [1]
