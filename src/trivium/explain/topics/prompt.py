"""Zero-shot and few-shot prompts, filled in, and what a model answers."""

from __future__ import annotations

import math

from trivium.data.records import Record
from trivium.errors import TriviumError
from trivium.evaluate.prompting import PromptQuestion, few_shot, fill_prompts
from trivium.explain.page import Bilingual, Formula, Heading, Page, Part, Table, say
from trivium.inference.score import continuation_scores
from trivium.language_model import LanguageModel
from trivium.model_loading import load

SUMMARY = Bilingual("zero-shot and few-shot prompts, filled in", "提示：零样本与少样本，逐一填好")

_TEXT = Bilingual("This really is a great opportunity", "这真是一个绝佳的机会")
_EXAMPLES = {
    Bilingual("You did very well", "你的表现非常好"): "1",
    Bilingual("How terrible", "太糟糕了"): "0",
    Bilingual("What a good idea", "真是一个好主意"): "1",
}
_QUESTION = Bilingual(
    'Is the sentiment of "{text}" positive or negative? Answer 1 if it is positive, else 0.\n'
    "Answer: {answer}",
    "“{text}”表达的情感是正面还是负面？正面回答 1，负面回答 0。\n答案：{answer}",
)
_INSTRUCTION = Bilingual(
    "Say of each text whether its sentiment is positive (1) or negative (0).",
    "判断每条文本的情感：正面为 1，负面为 0。",
)
_SHORT = Bilingual("Text: {text}\nAnswer: {answer}", "文本：{text}\n答案：{answer}")
_KINDS = {
    Bilingual("zero-shot", "零样本（zero-shot）"): (_QUESTION, "", 0),
    Bilingual("few-shot", "少样本（few-shot）"): (_QUESTION, "", 1),
    Bilingual("one instruction and several examples", "一条指令加若干示例"): (
        _SHORT,
        _INSTRUCTION,
        1,
    ),
}


def explain(
    text: str | None = None,
    *,
    example: list[str] | None = None,
    question: str | None = None,
    instruction: str | None = None,
    model: str | None = None,
) -> Page:
    """Fill in the prompts of a question of sentiment, and let a model answer.

    Args:
        text: What is judged.
        example: A solved example, TEXT=ANSWER; repeatable.
        question: How it is asked, with {text} and {answer}.
        instruction: What stands once before several examples.
        model: A model that answers.
    """
    solved = dict(map(_split, example)) if example else _EXAMPLES
    lm = None if model is None else load(model)
    parts: list[Part] = []
    rows, facts = [], []
    for name, (template, head, few) in _KINDS.items():
        template = question or template if template is _QUESTION else template
        head = instruction or head if head else ""
        shown = {}
        for language in ("en", "zh"):
            examples = [_record(say(one, language), answer) for one, answer in solved.items()]
            [(filled, prompt)] = fill_prompts(
                [_record(text or say(_TEXT, language), next(iter(solved.values())))],
                examples=examples,
                shots=few * len(examples),
                template=say(template, language),
                instruction=say(head, language),
                options=sorted({*solved.values()}),
            )
            shown[language] = prompt
            answers = {} if lm is None else _answer(lm, filled, prompt)
            facts.append({"kind": name.en, "language": language, "prompt": prompt, **answers})
            rows.append([name, language, *answers.values()])
        parts += [Heading(name), Formula(Bilingual(**shown))]
    if lm is not None:
        columns = [
            Bilingual("prompt", "提示"),
            Bilingual("language", "语言"),
            Bilingual("answer", "回答"),
            Bilingual("its probability among the options", "在各选项中的概率"),
        ]
        parts.append(Table(columns, rows))
    parts.append(
        Bilingual(
            "Nothing is trained: the examples are only text before the question (in-context "
            "learning). The answer is the option that the model gives the highest probability "
            "after the prompt. `trivium prompt` measures accuracy on a file of questions.",
            "模型不做任何训练：示例只是问题之前的一段文本（上下文学习）。"
            "回答取提示之后概率最大的选项。"
            "`trivium prompt` 可在一个问题文件上计算准确率。",
        )
    )
    return Page(Bilingual("Prompts", "提示（Prompt）"), parts, {"prompts": facts})


def _split(example: str) -> tuple[str, str]:
    text, sign, answer = example.rpartition("=")
    if not (sign and text.strip() and answer.strip()):
        raise TriviumError(
            f'the example "{example}" must be TEXT=ANSWER, such as "How terrible=0".'
        )
    return text.strip(), answer.strip()


def _record(text: str, answer: str) -> Record:
    return Record({"text": text, "answer": answer}, f'"{text}"')


def _answer(lm: LanguageModel, question: PromptQuestion, prompt: str) -> dict[str, str | float]:
    """The most probable option, and its share of the probability of all."""
    [row] = few_shot(lm, [(question, prompt)]).predictions
    scores = continuation_scores(lm, prompt, question.options, after=question.after)
    total = dict(zip(question.options, (math.exp(one.total) for one in scores)))
    answer = str(row["predicted"])
    return {"answer": answer, "probability": total[answer] / (sum(total.values()) or 1.0)}
