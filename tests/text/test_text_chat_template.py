"""Conversations as text, against `transformers`' apply_chat_template."""

from __future__ import annotations

import pytest
import tokenizers
import transformers
from tokenizers import models
from transformers.utils.chat_template_utils import render_jinja_template

from trivium.errors import TokenizerError
from trivium.text.chat_template import PLAIN_TEMPLATE, ChatTemplate

TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
CHATML = """\
{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] \
+ '<|im_end|>' + '\n'}}{% endfor %}
{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""
LLAMA2 = """\
{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}\
{% set system_message = messages[0]['content'] %}{% else %}{% set loop_messages = messages %}\
{% set system_message = false %}{% endif %}{% for message in loop_messages %}\
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}\
{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}\
{% endif %}{% if loop.index0 == 0 and system_message != false %}\
{% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content'] %}\
{% else %}{% set content = message['content'] %}{% endif %}\
{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}\
{% elif message['role'] == 'assistant' %}{{ ' ' + content.strip() + ' ' + eos_token }}\
{% endif %}{% endfor %}"""
LLAMA3 = """\
{{- bos_token }}
{%- if not tools is none %}
    {{- "tools: " + (tools | tojson) }}
{%- endif %}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' }}
    {{- message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %}"""
# The last answer alone keeps its thoughts, as in templates of models that think.
THINKING = """\
{%- for message in messages %}
{%- if message.role == 'assistant' %}
{{- '<a>' + ('<think></think>' if loop.last else '') + message.content + '<end>\n' }}
{%- else %}{{- '<u>' + message.content + '<end>\n' }}{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<a>' }}{%- endif %}"""
MARKED = """\
{%- for message in messages %}
    {%- if message.role == 'assistant' %}
        {{- 'A: ' }}{% generation %}{{ message.content + '</s>' }}{% endgeneration %}{{- '\n' }}
    {%- else %}
        {{- 'U: ' + message.content + '\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- 'A: ' }}{%- endif %}"""
JSON = """\
{%- for message in messages %}{% if loop.index0 > 2 %}{% break %}{% endif %}\
{{ message | tojson }}{{ message.content | tojson(indent=1) }}{% endfor %}"""
TEMPLATES = {
    "chatml": CHATML,
    "llama2": LLAMA2,
    "llama3": LLAMA3,
    "thinking": THINKING,
    "marked": MARKED,
    "json": JSON,
    "plain": PLAIN_TEMPLATE,
}


def turns(*contents: str, system: str | None = None) -> list[dict[str, str]]:
    roles = ("user", "assistant") * len(contents)
    first = [] if system is None else [{"role": "system", "content": system}]
    return [*first, *({"role": r, "content": text} for r, text in zip(roles, contents))]


CHATS = [
    turns("Hi"),
    turns("Hi", "Hi"),
    turns("你好 <b> 'x' & \"y\"", "  fine\n", "Why?", "Because <|im_end|>."),
    turns("a", "b", "b", "a", "a", "a", system="Be brief."),
]


@pytest.fixture(scope="module")
def hf():
    backend = tokenizers.Tokenizer(models.WordLevel({"<s>": 0, "</s>": 1}, unk_token="<s>"))
    return transformers.PreTrainedTokenizerFast(tokenizer_object=backend, **TOKENS)


def test_the_text_is_that_of_transformers(hf):
    for name, source in TEMPLATES.items():
        for chat in CHATS:
            for prompt in (False, True):
                expected = hf.apply_chat_template(
                    chat, chat_template=source, tokenize=False, add_generation_prompt=prompt
                )
                text = ChatTemplate(source, TOKENS).render(chat, add_generation_prompt=prompt)
                assert text == expected, (name, chat, prompt)


def get_turns(name: str, chat) -> list[str]:
    text, spans = ChatTemplate(TEMPLATES[name], TOKENS).get_turns(chat)
    assert text == ChatTemplate(TEMPLATES[name], TOKENS).render(chat)
    return [text[start:stop] for start, stop in spans]


@pytest.mark.parametrize(
    ("name", "expected"),
    {
        "chatml": ["b<|im_end|>\n", "a<|im_end|>\n", "a<|im_end|>\n"],
        "llama2": [" b </s>", " a </s>", " a </s>"],
        "llama3": ["b<|eot_id|>", "a<|eot_id|>", "a<|eot_id|>"],
        "marked": ["b</s>", "a</s>", "a</s>"],
        "plain": [" b</s>\n", " a</s>\n", " a</s>\n"],
        "thinking": ["b<end>\n", "a<end>\n", "<think></think>a<end>\n"],
    }.items(),
    ids={
        "chatml": ["b<|im_end|>\n", "a<|im_end|>\n", "a<|im_end|>\n"],
        "llama2": [" b </s>", " a </s>", " a </s>"],
        "llama3": ["b<|eot_id|>", "a<|eot_id|>", "a<|eot_id|>"],
        "marked": ["b</s>", "a</s>", "a</s>"],
        "plain": [" b</s>\n", " a</s>\n", " a</s>\n"],
        "thinking": ["b<end>\n", "a<end>\n", "<think></think>a<end>\n"],
    },
)
def test_the_responses_of_the_assistant(name, expected):
    chat = turns("a", "b", "b", "a", "a", "a", system="Be brief.")
    assert get_turns(name, chat) == expected


def test_responses_are_in_order_and_apart():
    for name in TEMPLATES:
        if name == "json":
            continue
        for chat in CHATS:
            _, spans = ChatTemplate(TEMPLATES[name], TOKENS).get_turns(chat)
            ends = [end for span in spans for end in span]
            assert ends == sorted(ends)
            assert len(spans) == sum(message["role"] == "assistant" for message in chat)


def test_marked_answers_are_those_of_transformers(hf):
    chat = turns("Hi", "there", "你好", "fine")
    texts, spans = render_jinja_template(
        [chat], chat_template=MARKED, return_assistant_tokens_mask=True, **TOKENS
    )
    assert ChatTemplate(MARKED, TOKENS).get_turns(chat) == (
        texts[0],
        [tuple(span) for span in spans[0]],
    )


def test_an_answer_before_any_question():
    chat = [{"role": "assistant", "content": "Welcome."}, *turns("Hi", "Yes?")]
    assert get_turns("chatml", chat) == ["Welcome.<|im_end|>\n", "Yes?<|im_end|>\n"]


def test_messages_that_a_template_refuses():
    template = ChatTemplate(LLAMA2, TOKENS)
    with pytest.raises(TokenizerError, match="refuses these messages: Conversation roles must"):
        template.render([*turns("a"), *turns("b")])
    with pytest.raises(TokenizerError, match="refuses these messages"):
        template.render([])
    with pytest.raises(TokenizerError, match="refuses these messages"):
        ChatTemplate("{{ messages[0].content + 1 }}", {}).render(turns("a"))


def test_a_response_that_the_template_hides():
    hiding = ChatTemplate("{{ messages | length }}", {})
    with pytest.raises(TokenizerError, match=r"message 2 cannot be found .*\{% generation %\}"):
        hiding.get_turns(turns("a", "b"))


def test_a_template_that_cannot_be_parsed():
    with pytest.raises(TokenizerError, match="cannot be parsed"):
        ChatTemplate("{% for %}", {})


def test_templates_run_in_a_sandbox():
    with pytest.raises(TokenizerError, match="refuses"):
        ChatTemplate("{{ messages.__class__.__mro__[1].__subclasses__() }}", {}).render(turns("a"))
    with pytest.raises(TokenizerError, match="refuses"):
        ChatTemplate("{{ messages.append(1) }}", {}).render(turns("a"))


def test_missing_tokens_are_empty():
    assert ChatTemplate("{{ bos_token + 'x' + eos_token }}", {}).render([]) == "x"
    assert ChatTemplate("{{ strftime_now('%Y') | length }}", {}).render([]) == "4"
