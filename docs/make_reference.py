"""Write reference pages, the table in docs/index.md and what the command line stores: `make docs`.

`python docs/make_reference.py --only cli recipe` writes only these, in seconds.

It stores what it would have to import torch for: `trivium.cli.load_json` reads the JSON files.

The book's index of names is written from the list of what its chapters have.

A test compares the pages with what this would write, so that they cannot be out of date.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import posixpath
import re
import runpy
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from trivium import spec
from trivium.choice import Choice
from trivium.cli import commands, load_command
from trivium.cli._help import translate_help
from trivium.config import ConfigKey, config_classes, iter_keys
from trivium.explain import list_topics, load_topic
from trivium.interop.convert import nearest_config
from trivium.interop.families import FAMILIES
from trivium.interop.spec_config import spec_to_config
from trivium.messages import load_chinese_help, load_chinese_recipe
from trivium.models.rnn import Cell
from trivium.nn import ACTIVATIONS
from trivium.objectives import Objective, task_kinds
from trivium.presets import auto_presets, catalogue, is_own_size, presets
from trivium.presets.facts import preset_summary
from trivium.presets.published import published_recipes
from trivium.spec import TransformerSpec
from trivium.train import defaults
from trivium.train.recipe import LABELLED_KEYS, TEXT_KEYS, Recipe
from trivium.train.recipe_loading import builtin_recipes, load_recipe
from trivium.workflows.show_recipe import show_recipe

DOCS = Path(__file__).parent
COMMANDS = DOCS.parent / "src" / "trivium" / "cli"
PRESETS = ("bert-mini", "modernbert-mini", "gpt2-mini", "llama-mini", "t5-mini", "bart-mini")
SHOWN_RECIPES = (
    *("bert-base", "gpt2", "gpt3-175b", "t5-base", "bart-base"),
    *("llama-65b", "roberta-base", "electra-base", "chinchilla-70b", "xlnet-large"),
)
PUBLISHED_WORDS = {
    "en": {
        "complete": "## Complete recipes",
        "columns": "| paper | presets |",
        "gaps": "## Recipes with gaps",
        "why": "These sizes train with the settings that learn fastest, because something that a "
        "run needs is published nowhere. `trivium presets NAME --recipe` shows what is known.",
        "gap columns": "| paper | presets | missing |",
        "shown": "## Ten recipes as a run has them",
    },
    "zh": {
        "complete": "## 完整的配方",
        "columns": "| 论文 | 预设 |",
        "gaps": "## 不完整的配方",
        "why": "这些规模采用学得最快的设置，因为训练需要的某些内容哪里都没有发表。"  # noqa: RUF001
        "`trivium presets NAME --recipe` 显示已知的部分。最后一列是英文。",
        "gap columns": "| 论文 | 预设 | 没有发表的 |",
        "shown": "## 训练实际采用的十份配方",
    },
}
"""What the page about published recipes says beside the catalogue, by language."""
# Sizes that hf_sizes.py of the tests varies, for the table of families.
HF_SIZES = DOCS.parent / "tests" / "interop" / "hf_sizes.py"
PUBLISHED_MARK = "<!-- catalogue: written by docs/make_reference.py -->"
FAMILIES_MARK = "<!-- families: written by docs/make_reference.py -->"
MANY_KINDS = 10
"""A table of the recipe with more kinds, or a command with more subcommands, has a page each."""
NOTE = "<!-- Written by docs/make_reference.py; change the program and run `make docs`. -->"


WORDS = {
    "en": {
        "title": "The command line",
        "same": "`trivium COMMAND --help` shows the same.",
        "columns": "| command | does |",
        "default": " Default: {}.",
        "required": " Required.",
        "codes": "Exit codes: 0 success, 1 the input was wrong (one message), 2 wrong usage, "
        "130 interrupted after saving.",
    },
    "zh": {
        "title": "命令行",
        "same": "`trivium --language zh COMMAND --help` 显示同样的内容。",
        "columns": "| 命令 | 用途 |",
        "default": "默认：{}。",  # noqa: RUF001
        "required": "必填。",
        "codes": "退出码：0 成功，1 输入有误（一条消息说明），2 用法错误，130 保存之后被中断。",  # noqa: RUF001
    },
}
"""What pages about commands say beside the texts of `--help`, by language."""
RECIPE_WORDS = {
    "en": {
        "title": "The recipe",
        "about": "A recipe is one TOML file, for pretraining and fine-tuning alike; `--set` takes "
        "the same keys (`--set train.steps=500`). An unknown key is an error that names the "
        "nearest one. A key without a default follows from the model and the data; the run writes "
        "all of them to `recipe.toml` in its folder. Shipped with the package: {}.",
        "table": "table",
        "kinds": "Kinds: {}.",
        "kind of": "The `kind` of {} is one of:",
        "kind below": "The `kind` of {} is one of the following.",
        "kind": "kind",
        "comma": ", ",
        "key": "key",
        "default": "default",
        "takes": "takes",
        "or": " or ",
        "parts link": "[Parts of a model](parts/index.md) lists what `model.embedding`, "
        "`model.encoder` and `model.decoder` can change.",
        "outside": "Keys outside the tables",
        "chosen": "What is chosen for a preset",
        "chosen for": "What a recipe leaves open follows from the model and the data. For a preset "
        "and a few megabytes of text (a vocabulary of 8,192 tokens, 2,000 steps, rows of 128 "
        "tokens):",
        "chosen columns": "preset | objective | tokenizer | optimizer | learning rate | schedule | "
        "tokens per step",
        "all keys": "All keys of `trivium pretrain bert-mini --data my_texts/`, as its "
        "`recipe.toml` has them:",
        "parts": "Parts of a model",
        "parts about": "What `model.embedding`, `model.encoder` and `model.decoder` take, for "
        "example `--set model.decoder.layers.mixer.pattern.kind=sliding --set "
        "model.decoder.layers.mixer.pattern.window=128`. A key of `layers` is set in every layer "
        "whose part has the key; `first_layers`, which come before `layers` and are not repeated, "
        "take the same keys. Where a place has several kinds, a new kind starts without the keys "
        "of the old one. Stacks of an encoder are as those of a decoder. An activation is one of "
        "{}, or a table of kind `swish`. An RNN preset takes `model.cell`: {}.",
        "mixer kinds": "The `kind` of a mixer is one of:",
    },
    "zh": {
        "title": "配方的键",
        "about": "配方是一个 TOML 文件，预训练和微调用同一种格式；`--set` 接受同样的键"  # noqa: RUF001
        "（`--set train.steps=500`）。写错的键会报错，并指出最接近的键。"  # noqa: RUF001
        "没有默认值的键由模型和数据决定，训练会把所有键写进文件夹里的 `recipe.toml`。"  # noqa: RUF001
        "最常用的键见[配方](../../recipe.md)。随包提供的配方：{}。",  # noqa: RUF001
        "table": "表",
        "kinds": "种类：{}。",  # noqa: RUF001
        "kind of": "{} 的 `kind` 是下列之一：",  # noqa: RUF001
        "kind below": "{} 的 `kind` 是下列之一。",
        "kind": "种类",
        "comma": "、",
        "key": "键",
        "default": "默认",
        "takes": "取值",
        "or": " 或 ",
        "integer": "整数",
        "number": "数",
        "string": "字符串",
        "true or false": "true 或 false",
        "list": "列表",
        "parts link": "[模型的部件](parts/index.md)列出 `model.embedding`、`model.encoder` 和 "
        "`model.decoder` 可以修改什么。",
        "outside": "各表以外的键",
        "chosen": "各预设采用的值",
        "chosen for": "配方没有写明的值由模型和数据决定。对于一个预设和几 MB 文本"
        "（词表 8,192 个词元，2,000 步，每行 128 个词元）：",  # noqa: RUF001
        "chosen columns": "预设 | 训练目标 | 分词器 | 优化器 | 学习率 | 学习率的变化 | "
        "每步的词元数",
        "all keys": "`trivium pretrain bert-mini --data my_texts/` 的全部键，"  # noqa: RUF001
        "与它的 `recipe.toml` 相同：",  # noqa: RUF001
        "parts": "模型的部件",
        "parts about": "`model.embedding`、`model.encoder` 和 `model.decoder` 可以用的键，例如 "  # noqa: RUF001
        "`--set model.decoder.layers.mixer.pattern.kind=sliding --set "
        "model.decoder.layers.mixer.pattern.window=128`。`layers` 的一个键设给部件中有这个键的"
        "所有层；`first_layers` 在 `layers` 之前，不重复，键也相同。"  # noqa: RUF001
        "一处有几个种类时，换了种类就不再有原来种类的键。"  # noqa: RUF001
        "编码器的层与解码器的相同。激活函数是 {}，或种类为 `swish` 的表。"  # noqa: RUF001
        "循环网络的预设可以设 `model.cell`：{}。",  # noqa: RUF001
        "mixer kinds": "混合器的 `kind` 是下列之一：",  # noqa: RUF001
        "english": "公式的推导、例子和出处见[英文页]({})。",
    },
}
"""What pages about the recipe say beside docstrings and descriptions of keys, by language."""


def command_pages(language: str = "en") -> dict[str, str]:
    """docs/reference/cli/: an index, and a page per command with its options and examples.

    With "zh" the pages are those of docs/zh/reference/cli/, with the Chinese texts of `--help`.
    """
    words = WORDS[language]
    loaded = {name: _load_command(name, language) for name in commands()}
    summaries = {
        name: line if language == "en" else load_chinese_help()[name]["summary"]
        for name, (_, line) in commands().items()
    }
    rows = [f"| [`{name}`]({name}.md) | {line} |" for name, line in summaries.items()]
    index = [
        f"# {words['title']}",
        words["same"],
        "\n".join([words["columns"], "|---|---|", *rows]),
        words["codes"],
    ]
    pages = {"index": index}
    for name, command in loaded.items():
        title = f"# trivium {name}"
        if not hasattr(command, "commands"):
            pages[name] = [title, *_command(f"trivium {name}", command, words)]
            continue
        pages[name] = [title, inspect.cleandoc(command.help or "")]
        has_pages = len(command.commands) > MANY_KINDS
        rows = []
        for inner, one in command.commands.items():
            page = f"{name}-{inner}" if has_pages else name
            line = one.get_short_help_str(200)
            rows.append(f"| [`{inner}`]({page}.md#trivium-{name}-{inner}) | {line} |")
            heading = f"{'#' if has_pages else '##'} trivium {name} {inner}"
            parts = [heading, *_command(f"trivium {name} {inner}", one, words)]
            pages[page] = [*pages.get(page, []), *parts]
        pages[name].insert(2, "\n".join([words["columns"], "|---|---|", *rows]))
    folder = "reference/cli" if language == "en" else "zh/reference/cli"
    return {f"{folder}/{name}.md": _page(parts) for name, parts in pages.items()}


def chinese_command_pages() -> dict[str, str]:
    """docs/zh/reference/cli/: the pages of commands in Chinese."""
    return command_pages("zh")


def _load_command(name: str, language: str) -> Any:
    """Return a command whose help texts are in this language."""
    before = os.environ.get("TRIVIUM_LANGUAGE")
    os.environ["TRIVIUM_LANGUAGE"] = language
    try:
        return translate_help(load_command(name), name)
    finally:
        if before is None:
            del os.environ["TRIVIUM_LANGUAGE"]
        else:
            os.environ["TRIVIUM_LANGUAGE"] = before


def _page(parts: list[str]) -> str:
    return "\n\n".join(part for part in (NOTE, *parts) if part) + "\n"


def completion() -> str:
    """src/trivium/cli/completion.json: the options of every command, and what they do."""
    options = {}
    for name in commands():
        command = load_command(name)
        for inner, one in getattr(command, "commands", {"": command}).items():
            options[f"{name} {inner}".strip()] = {
                option: parameter.help
                for parameter in one.params
                for option in parameter.opts
                if option.startswith("--") and not parameter.hidden
            }
    return json.dumps(options, indent=1) + "\n"


def preset_rows() -> str:
    """src/trivium/cli/presets.json: the facts of every preset, one preset per line."""
    rows = [preset_summary(name, preset) for name, preset in catalogue.items()]
    rows += [
        {
            "name": name,
            "family": presets[base].family,
            "resizes": base,
            "paper": f"{base} in the size that learns most in train.minutes on this machine",
        }
        for name, base in auto_presets.items()
    ]
    return "[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n"


def keys() -> str:
    """src/trivium/cli/keys.json: the keys of tasks, described, and the keys of recipes."""
    recipe = dict.fromkeys(key.name for key in iter_keys(Recipe))
    stored = {
        "tasks": {
            kind: [
                [key.name, key.description, _default(key)]
                for key in iter_keys(Objective.kinds[kind])
                if key.name != "kind"
            ]
            for kind in task_kinds()
        },
        "recipe": [name for name in recipe if not name.startswith(("mix.", "phases."))],
        "text_only": TEXT_KEYS,
        "labelled_only": LABELLED_KEYS,
    }
    return json.dumps(stored, indent=1) + "\n"


def _default(key: ConfigKey) -> str:
    unset = key.default is False or key.default in (None, "", "none", ())
    return "" if unset else str(key.default)


def topics() -> str:
    """src/trivium/cli/topics.json: the docstring and the parameters of every topic's function."""
    outlines = {}
    for name in list_topics():
        function = load_topic(name).explain
        parameters = inspect.signature(function, eval_str=True).parameters.values()
        outlines[name] = {
            "help": inspect.getdoc(function),
            "parameters": {
                one.name: [inspect.formatannotation(one.annotation), one.default]
                for one in parameters
            },
        }
    return json.dumps(outlines, indent=1) + "\n"


STORED = {"topics": topics, "keys": keys, "presets": preset_rows, "completion": completion}
"""JSON file of the command line -> the function that makes it; completion reads the others."""


class RecipePages:
    """The pages of docs/reference/recipe/, or with "zh" those of docs/zh/reference/recipe/.

    There is an index, and a page per table with every key and its default. A table of many kinds,
    such as [objective], is a folder: an index, and a page per kind.
    """

    def __init__(self, language: str = "en") -> None:
        self.words = RECIPE_WORDS[language]
        self.folder = "reference/recipe" if language == "en" else "zh/reference/recipe"
        self.chinese = load_chinese_recipe() if language == "zh" else None

    def make(self) -> dict[str, str]:
        """Return the text of every page, by its path in docs/."""
        words, fields = self.words, Recipe.model_fields
        top_level = {
            name: field for name, field in fields.items() if not [*config_classes(field.annotation)]
        }
        pages: dict[str, list[str]] = {}
        rows = []
        for name, field in fields.items():
            classes = list(config_classes(field.annotation))
            if not classes:
                continue
            table = f"[[{name}]]" if "tuple" in str(field.annotation) else f"[{name}]"
            kinds = {one.model_fields["kind"].default: one for one in classes[1:] and classes}
            target = f"{name}.md"
            text = words["kinds"].format(words["comma"].join(f"`{kind}`" for kind in kinds))
            if len(kinds) > MANY_KINDS:
                target = f"{name}/index.md"
                listed = self._list_kinds(kinds)
                pages[f"{name}/index"] = [f"# {table}", words["kind of"].format(table), listed]
                for kind, config in kinds.items():
                    page = f"{name}/{kind}"
                    heading = f'# {table} kind = "{kind}"'
                    pages[page] = [heading, *self._table(page, name, config, "##")]
            elif kinds:
                pages[name] = [f"# {table}", words["kind below"].format(table)]
                for kind, config in kinds.items():
                    heading = f'## kind = "{kind}"'
                    pages[name] += [heading, *self._table(name, name, config, "###")]
            else:
                pages[name] = [f"# {table}", *self._table(name, name, classes[0], "##")]
                text = self._summary(classes[0])
            rows.append(f"| [`{table}`]({target}) | {text} |")
        shipped = words["comma"].join(f"`{name}`" for name in builtin_recipes())
        pages |= self._parts()
        pages["index"] = [
            f"# {words['title']}",
            words["about"].format(shipped),
            "\n".join([f"| {words['table']} | |", "|---|---|", *rows]),
            words["parts link"],
            f"## {words['outside']}",
            self._keys(top_level, ""),
            *self._chosen(),
        ]
        return {f"{self.folder}/{name}.md": _page(parts) for name, parts in pages.items()}

    def _list_kinds(self, kinds: Mapping[str, type[BaseModel]]) -> str:
        rows = [f"| [`{kind}`]({kind}.md) | {self._summary(one)} |" for kind, one in kinds.items()]
        return "\n".join([f"| {self.words['kind']} | |", "|---|---|", *rows])

    def _table(self, page: str, name: str, config: type[BaseModel], heading: str) -> Iterator[str]:
        """The description and the keys of one table, or of one of its kinds."""
        yield self._text(config)
        if self.chinese and "\nSource: " in (inspect.getdoc(config) or ""):
            here = posixpath.dirname(f"{self.folder}/{page}")
            yield self.words["english"].format(
                posixpath.relpath(f"reference/recipe/{page}.md", here)
            )
        own = {key: f for key, f in config.model_fields.items() if key != "kind"}
        yield self._keys(own, f"{name}.")
        for key, inner in own.items():
            is_list = "tuple" in str(inner.annotation)
            for member in config_classes(inner.annotation) if is_list else ():
                yield f'{heading} {name}.{key}, kind = "{member.model_fields["kind"].default}"'
                yield self._text(member)
                keys = {k: f for k, f in member.model_fields.items() if k != "kind"}
                yield self._keys(keys, f"{name}.{key}[].")

    def _text(self, config: type[BaseModel]) -> str:
        """The docstring of a table or kind, or its Chinese text."""
        text = inspect.getdoc(config) or ""
        if self.chinese is None:
            return text
        return self._translate("kinds", text.partition("\n\n")[0].replace("\n", " ")).strip()

    def _translate(self, table: str, text: str) -> str:
        """The text of a key or a kind in the language of the pages."""
        if self.chinese is None:
            return text
        if text not in self.chinese[table]:
            raise SystemExit(
                f"messages/recipe_zh.toml has no Chinese text in [{table}] for: {text}"
            )
        return self.chinese[table][text]

    def _summary(self, config: type[BaseModel]) -> str:
        """The first paragraph of the text, as one line of a table."""
        return self._text(config).partition("\n\n")[0].replace("\n", " ").replace("|", "\\|")

    def _keys(self, fields: dict[str, FieldInfo], prefix: str) -> str:
        if not fields:
            return ""
        rows = [self._columns("key", "default", "takes", "")]
        for name, field in fields.items():
            default = None if field.is_required() else field.get_default(call_default_factory=True)
            is_table = default is None or isinstance(default, BaseModel)
            shown = "" if is_table else f"`{_toml(default)}`"
            text = field.description or ""
            text = self._translate("keys", text).replace("|", "\\|") if text else ""
            kind = self._type(field.annotation)
            rows.append(f"| `{prefix}{name}` | {shown} | {kind} | {text} |")
        return "\n".join(rows)

    def _columns(self, *names: str) -> str:
        heads = " | ".join(self.words[name] if name else "" for name in names)
        return f"| {heads} |".replace("|  |", "| |") + "\n" + "|---" * len(names) + "|"

    def _type(self, annotation: Any) -> str:
        """What a key takes, in the words of TOML."""
        choices = getattr(annotation, "__args__", ())
        origin = getattr(annotation, "__origin__", None)
        if hasattr(annotation, "__metadata__"):
            return self._type(origin)
        if choices and all(isinstance(choice, str | int) for choice in choices):
            return self.words["comma"].join(f"`{_toml(choice)}`" for choice in choices)
        if choices and origin not in (dict, tuple):
            kinds = [self._type(one) for one in choices if one is not type(None)]
            return self.words["or"].join(dict.fromkeys(kinds))
        names = {int: "integer", float: "number", str: "string", bool: "true or false"}
        name = "list" if origin is tuple else names.get(annotation, "table")
        return self.words.get(name, name)

    def _chosen(self) -> Iterator[str]:
        """What a preset's recipe leaves open, as it is chosen for a few megabytes of text."""
        columns = self.words["chosen columns"]
        rows = [f"| {columns} |", "|---" * len(columns.split(" | ")) + "|"]
        for preset in (*PRESETS, "lstm-mini", "bert-base", "gpt2"):
            recipe = _complete(preset)
            optimizer = recipe.optimizer
            parts = (
                recipe.objective.kind,
                recipe.tokenizer.kind,
                optimizer.kind,
                f"{optimizer.lr:.2g}",
            )
            cells = (preset, *parts, recipe.schedule.kind, f"{recipe.train.batch_tokens:,}")
            rows.append(f"| {' | '.join(f'`{cell}`' for cell in cells)} |")
        yield f"## {self.words['chosen']}"
        yield self.words["chosen for"]
        yield "\n".join(rows)
        yield self.words["all keys"]
        yield f"```toml\n{_complete('bert-mini').to_toml().strip()}\n```"

    def _parts(self) -> dict[str, list[str]]:
        """Every part of a Transformer that `model.embedding`, `.encoder`, `.decoder` can change."""
        words, columns = self.words, self._columns("key", "default", "takes")
        lists = (
            words["comma"].join(f"`{name}`" for name in names)
            for names in (ACTIVATIONS, get_args(Cell))
        )
        index = [f"# {words['parts']}", words["parts about"].format(*lists)]
        for path, part in (("model.embedding", spec.Embedding), ("model.decoder", spec.Stack)):
            index += [f"## {path}", columns + "".join(self._part_rows(path, part))]
        pages = {"parts/index": index}
        mixers = dict.fromkeys(_parts_in(spec.Layer.model_fields["mixer"].annotation))
        kinds = {mixer.model_fields["kind"].default: mixer for mixer in mixers}
        for kind, mixer in kinds.items():
            rows = "".join(self._part_rows("model.decoder.layers.mixer", mixer))
            pages[f"parts/{kind}"] = [f'# mixer.kind = "{kind}"', columns + rows]
        listed = self._list_kinds(kinds)
        index += ["## model.decoder.layers.mixer", words["mixer kinds"], listed]
        return pages

    def _part_rows(self, path: str, part: type[spec.Part]) -> Iterator[str]:
        """The rows of a part's keys, and of the parts inside."""
        kind = part.model_fields.get("kind")
        if kind is not None:
            yield f'\n| `{path}.kind` | `"{kind.default}"` | {self._summary(part)} |'
        for name, field in part.model_fields.items():
            inner = list(dict.fromkeys(_parts_in(field.annotation)))
            if part in inner or name in ("first_layers", "mixer"):  # described elsewhere
                inner = []
            if name != "kind" and not inner:
                is_unset = field.is_required() or field.default is None
                shown = "" if is_unset else f"`{_toml(field.default)}`"
                yield f"\n| `{path}.{name}` | {shown} | {self._type(field.annotation)} |"
            for one in inner:
                yield from self._part_rows(f"{path}.{name}", one)


def recipe_pages() -> dict[str, str]:
    """The pages of docs/reference/recipe/."""
    return RecipePages().make()


def chinese_recipe_pages() -> dict[str, str]:
    """The pages of docs/zh/reference/recipe/."""
    return RecipePages("zh").make()


def published_recipes_pages() -> dict[str, str]:
    """docs/published_recipes.md in both languages, with the current catalogue and ten recipes."""
    complete: dict[str, list[str]] = {}
    missing: dict[str, tuple[list[str], str]] = {}
    for name, recipe in published_recipes().items():
        if recipe.is_complete:
            complete.setdefault(recipe.paper, []).append(f"`{name}`")
        else:
            names, _ = missing.setdefault(recipe.paper, ([], "; ".join(recipe.missing)))
            names.append(f"`{name}`")
    trained = [f"| {paper} | {', '.join(names)} |" for paper, names in complete.items()]
    left_open = [
        f"| {paper} | {', '.join(names)} | {text} |" for paper, (names, text) in missing.items()
    ]
    shown = [
        f"<details><summary><code>trivium pretrain {name} --show-recipe</code></summary>\n\n"
        f"```toml\n{show_recipe(name).strip()}\n```\n\n</details>"
        for name in SHOWN_RECIPES
    ]
    pages = {}
    for language, page in (("en", "published_recipes.md"), ("zh", "zh/published_recipes.md")):
        words = PUBLISHED_WORDS[language]
        about, mark, _ = (DOCS / page).read_text(encoding="utf-8").partition(PUBLISHED_MARK)
        parts = [
            f"{about}{mark}",
            words["complete"],
            "\n".join([words["columns"], "|---|---|", *trained]),
            words["gaps"],
            words["why"],
            "\n".join([words["gap columns"], "|---|---|---|", *left_open]),
            words["shown"],
            *shown,
            "",
        ]
        pages[page] = "\n\n".join(parts)
    return pages


def _parts_in(annotation: Any) -> Iterator[type[spec.Part]]:
    if isinstance(annotation, type) and issubclass(annotation, spec.Part):
        is_choice = issubclass(annotation, Choice) and not annotation.is_member()
        yield from annotation.kinds.values() if is_choice else [annotation]
    for choice in getattr(annotation, "__args__", ()):
        yield from _parts_in(choice)


def _complete(preset: str) -> Recipe:
    """The recipe of a preset for a few megabytes of text."""
    recipe = load_recipe(preset, {"data": {"paths": ["my_texts/"]}})
    spec = recipe.model.build_spec()
    assert spec is not None
    size = defaults.vocabulary_size(spec, 5_000_000)
    recipe = recipe.replace(tokenizer=recipe.tokenizer.replace(vocab_size=size))
    return defaults.complete(recipe, spec)


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, BaseModel):
        return f'{{kind = "{value.kind}"}}'  # type: ignore[attr-defined]
    if isinstance(value, tuple | list):
        return f"[{', '.join(_toml(one) for one in value)}]"
    return f"{value:_}" if isinstance(value, int) else str(value)


def _command(name: str, command: Any, words: dict[str, str]) -> Iterator[str]:
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    options = [one for one in command.params if one.param_type_name == "option" and not one.hidden]
    usage = " ".join([name, *(_placeholder(one) for one in arguments), "[OPTIONS]"])
    yield f"```\n{usage}\n```"
    yield inspect.cleandoc(command.help or "").replace("\f", "")
    rows = ["| | |", "|---|---|"]
    rows += [f"| `{_placeholder(one)}` | {_description(one, words)} |" for one in arguments]
    rows += [
        f"| `{', '.join([*one.opts, *one.secondary_opts])}` | {_description(one, words)} |"
        for one in options
    ]
    yield "\n".join(rows)
    several = (command.epilog or "").replace("\\\n", "").split("\n\n")[1:]
    examples = [" ".join(one.split()) for one in several]
    if examples:
        yield "```bash\n" + "\n".join(examples) + "\n```"


def _placeholder(argument: Any) -> str:
    if argument.metavar:
        return argument.metavar
    name = argument.name.upper() + ("..." if argument.nargs == -1 else "")
    return name if argument.required else f"[{name}]"


def _description(parameter: Any, words: dict[str, str]) -> str:
    text = re.sub(r"([|\[\]])", r"\\\1", parameter.help or "")
    if isinstance(parameter.show_default, str):
        return text + words["default"].format(parameter.show_default)
    default = parameter.default
    if parameter.required:
        return text if parameter.param_type_name == "argument" else text + words["required"]
    if default is None or default is False or default == "" or callable(default):
        return text
    shown = parameter.opts[0] if default is True else default
    return text + words["default"].format(f"`{shown}`")


def families_table() -> str:
    """The table of Hugging Face families in docs/index.md.

    A preset belongs to the family that its name begins with, or else to the nearest family.
    """
    sizes = runpy.run_path(str(HF_SIZES))
    published: dict[str, list[str]] = {}
    for name, preset in catalogue.items():
        if not is_own_size(name) and isinstance(preset.spec, TransformerSpec):
            model_type = _preset_family(name, preset.spec)
            published.setdefault(model_type, []).append(f"`{name}`")
    rows = []
    for model_type, family in sorted(FAMILIES.items()):
        classes = [name for name in family.architectures if not name.endswith("MultipleChoice")]
        tested = len(classes) + sum(len(sizes["VARIANTS"].get(name, [])) for name in classes)
        names = ", ".join(published.get(model_type, [])) or "-"
        rows.append(f"| `{model_type}` | yes | yes | {tested} | {names} |")
    head = (
        "| family | in | out | tested configurations | published sizes |\n|---|---|---|---|---|\n"
    )
    return head + "\n".join(rows) + "\n"


def _preset_family(name: str, spec: TransformerSpec) -> str:
    """The `model_type` of a preset, or "" if no family has all of its parts."""
    squashed = re.sub("[-_.]", "", name)
    kinds = {re.sub("_text|[-_.]", "", kind): kind for kind in FAMILIES}
    named = [kind for kind in kinds if squashed.startswith(kind)]
    if named:
        model_type = kinds[max(named, key=len)]
        if not spec_to_config(FAMILIES[model_type], spec).differences:
            return model_type
    nearest = nearest_config(spec)
    return "" if nearest.differences else nearest.family.model_type


def index_page() -> dict[str, str]:
    """docs/index.md with the current table of families."""
    text = (DOCS / "index.md").read_text(encoding="utf-8")
    before, mark, rest = text.partition(FAMILIES_MARK)
    _, heading, after = rest.partition("\n## ")
    return {"index.md": f"{before}{mark}\n\n{families_table()}{heading}{after}"}


def names_pages() -> dict[str, str]:
    """docs/book/LANGUAGE/names.md in both languages."""
    return {f"book/{language}/names.md": names(language) for language in ("en", "zh")}


def names(language: str) -> str:
    """docs/book/LANGUAGE/names.md: systems, terms and formulas in both languages, by command."""
    listed = tomllib.loads((DOCS / "book" / "coverage.toml").read_text(encoding="utf-8"))["items"]
    named = [item for item in listed if item["kind"] in ("system", "term", "formula")]
    other = "zh" if language == "en" else "en"
    reason = f"reason_{language}"

    def title(page: str) -> str:
        text = (DOCS / "book" / language / f"{page}.md").read_text(encoding="utf-8")
        return text.partition("\n")[0].removeprefix("# ")

    rows = sorted(
        f"| {item[language]} | {item[other]} | [{title(item['page'])}]({item['page']}.md) | "
        + (
            f"`{item['command']}` |"
            if "command" in item
            else f"{item.get(reason, item['reason'])} |"
        )
        for item in named
    )
    heading = {
        "en": "# Names\n\n| name | in Chinese | chapter | command |",
        "zh": "# 名称索引\n\n命令取自英文各章。中文各章换用中文语料时参数略有不同。\n\n"
        "| 名称 | 英文 | 章 | 命令 |",
    }[language]
    return "\n".join([NOTE, "", heading, "|---|---|---|---|", *rows]) + "\n"


PAGES: dict[str, Callable[[], dict[str, str]]] = {
    "cli": command_pages,
    "cli-zh": chinese_command_pages,
    "recipe": recipe_pages,
    "recipe-zh": chinese_recipe_pages,
    "published": published_recipes_pages,
    "names": names_pages,
    "families": index_page,
}
"""What `--only` takes -> the function that makes the pages, by their path in docs/."""
FOLDERS = {
    "cli": "reference/cli",
    "cli-zh": "zh/reference/cli",
    "recipe": "reference/recipe",
    "recipe-zh": "zh/reference/recipe",
}
"""Folders in which every page is written by the program; pages no longer made are deleted."""


def main() -> None:
    """Write the JSON files of the command line and the pages."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    names = [*STORED, *PAGES]
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="NAME")
    parser.epilog = f"NAME is one of {', '.join(names)}; families takes minutes."
    only = parser.parse_args().only
    for name in [name for name in STORED if name in only]:
        (COMMANDS / f"{name}.json").write_text(STORED[name](), encoding="utf-8")
    for name in [name for name in PAGES if name in only]:
        pages = PAGES[name]()
        for page in (DOCS / FOLDERS[name]).rglob("*.md") if name in FOLDERS else ():
            if page.relative_to(DOCS).as_posix() not in pages:
                page.unlink()
        for path, text in pages.items():
            (DOCS / path).parent.mkdir(parents=True, exist_ok=True)
            (DOCS / path).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
