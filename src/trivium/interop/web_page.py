"""Write a web page that runs an ONNX model in the browser, with transformers.js.

    index.html  model/  library/

The page loads everything from its own folder. `library/` has the files of two npm packages, which
`npm pack` fetches; their versions and checksums are in `PACKAGES`.
"""

from __future__ import annotations

import base64
import hashlib
import json
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from trivium.errors import SpecError, TriviumError
from trivium.files import write_file
from trivium.models.transformer import TransformerSpec

PAGE, MODEL, LIBRARY = "index.html", "model", "library"


@dataclass(frozen=True)
class Package:
    """An npm package, and the files of it that the page needs.

    Args:
        name: the name of the package.
        version: its version.
        integrity: the SHA-512 digest of its archive, as npm writes it.
        files: path in the archive -> name in `library/`.
    """

    name: str
    version: str
    integrity: str
    files: Mapping[str, str]

    @property
    def archive(self) -> str:
        """The name of the file that `npm pack` writes."""
        return f"{self.name.lstrip('@').replace('/', '-')}-{self.version}.tgz"


PACKAGES = (
    Package(
        "@huggingface/transformers",
        "4.3.2",
        "sha512-V3+dqf3iWlRYJ9I9GreM3zGQd0lAXnnoPeddmkOQYWAEE4l/+Fi6p7tx/qVUJlKQgLXGim2W76rTOzz+eC0i7g==",
        {
            "package/dist/transformers.min.js": "transformers.min.js",
            "package/LICENSE": "LICENSE-transformers.txt",
        },
    ),
    Package(
        "onnxruntime-web",  # the version that the bundle above was built with
        "1.31.0-dev.20260914-8d85527a0",
        "sha512-Iy7rtadoBgxS/LLvDr3QW38DB1PNXRnr0GJMcL0TAt7c9qjgVQl83UlGCVyeAnK2InpmW8Uc3PL8XIuqtDeF6g==",
        {
            f"package/dist/ort-wasm-simd-threaded.{end}": f"ort-wasm-simd-threaded.{end}"
            for end in ("mjs", "wasm")
        },
    ),
)
PACK_COMMAND = "npm pack " + " ".join(f"{each.name}@{each.version}" for each in PACKAGES)
"""The command that fetches the archives of the library."""

# The families that transformers.js has, by `model_type`.
_DECODERS = {
    *("gpt2", "gptj", "gpt_neo", "gpt_neox", "opt", "bloom", "llama", "mistral", "qwen2"),
    *("qwen3", "gemma", "gemma2", "gemma3_text", "phi", "phi3", "olmo", "olmo2", "olmo3", "glm"),
    *("smollm3", "granite", "starcoder2", "stablelm", "modernbert-decoder"),
}
_ENCODER_DECODERS = {"t5", "mt5", "bart"}
_TASKS = {"mlm": "fill-mask", "classifier": "classify", "tagger": "tag", "span": "answer"}
_DTYPES = {"f32": "fp32", "f16": "fp16", "int8": "q8"}
_EXAMPLES = {"tokens": 50, "temperature": 0}


def choose_task(
    spec: TransformerSpec, model_type: str, *, embeds: bool = False, has_chat_template: bool = False
) -> str:
    """Return the task of the page.

    Args:
        spec: the spec of the model.
        model_type: the family in `config.json`.
        embeds: whether the model was trained for embeddings.
        has_chat_template: whether the model has a chat template.

    Raises:
        SpecError: transformers.js does not have the family, or the page has no task for the head.
    """
    kinds = [head.kind for head in spec.heads if head.kind not in ("pooler", "vector", "nsp")]
    if spec.family != "encoder-only":
        known = _DECODERS if spec.family == "decoder-only" else _ENCODER_DECODERS
        if kinds != ["lm"] or embeds:
            use = "is for embeddings" if embeds else f"has: {', '.join(kinds) or 'no head'}"
            raise SpecError(
                f"the page generates with a language-model head; this {spec.family} model {use}."
            )
        if model_type not in known:
            raise SpecError(
                f"transformers.js {PACKAGES[0].version} does not run {spec.family} models of the "
                f'family "{model_type}" with a web page; it runs: {", ".join(sorted(known))}.'
            )
        if spec.family == "encoder-decoder":
            return "rewrite"
        return "chat" if has_chat_template else "generate"
    if model_type in _ENCODER_DECODERS | {"umt5", "pegasus", "marian"}:
        raise SpecError(
            f'transformers.js expects a decoder in the family "{model_type}": the encoder alone '
            "has no web page."
        )
    if embeds or not kinds:
        return "embed"
    if (task := _TASKS.get(kinds[0])) is None:
        raise SpecError(
            f'the web page has no task for a head of kind "{kinds[0]}"; it has tasks for: '
            f"{', '.join(_TASKS)}, lm and embeddings."
        )
    return task


def write_page(folder: Path, *, task: str, weight_type: str, **settings: Any) -> None:
    """Write the page to `folder`.

    Args:
        folder: the folder of the page.
        task: the task, as `choose_task` returns it.
        weight_type: the data type of the weights.
        settings: further settings that the script of the page reads.
    """
    everything = {
        "task": task,
        "dtype": _DTYPES[weight_type],
        "examples": _EXAMPLES,
        "commands": library_commands(),
        **settings,
    }
    page = resources.files("trivium.interop").joinpath("web_page.html").read_text(encoding="utf-8")
    text = json.dumps(everything, ensure_ascii=False).replace("<", "\\u003c")
    write_file(folder / PAGE, page.replace("__SETTINGS__", text))


def library_commands() -> list[str]:
    """Return the commands that put the library beside the page, run in the folder of the page."""
    commands = [PACK_COMMAND, f"mkdir -p {LIBRARY}"]
    for package in PACKAGES:
        for path, name in package.files.items():
            commands.append(f"tar -xzOf {package.archive} {path} > {LIBRARY}/{name}")
    return commands


def copy_library(source: Path, folder: Path) -> None:
    """Copy the files of the library from npm's archives in `source` to `folder/library`.

    Raises:
        TriviumError: an archive is missing, or is not the one whose checksum is known.
    """
    (folder / LIBRARY).mkdir(parents=True, exist_ok=True)
    for package in PACKAGES:
        archive = source / package.archive
        if not archive.is_file():
            raise TriviumError(
                f"{archive} is missing: run `{PACK_COMMAND}` in {source}, which writes the "
                "archives of the JavaScript library."
            )
        digest = hashlib.sha512(archive.read_bytes()).digest()
        if f"sha512-{base64.b64encode(digest).decode()}" != package.integrity:
            raise TriviumError(
                f"{archive} is not the published archive of {package.name} {package.version}: its "
                f"SHA-512 differs. Fetch it again with `{PACK_COMMAND}`."
            )
        with tarfile.open(archive) as files:
            for path, name in package.files.items():
                content = files.extractfile(path)
                assert content is not None, path
                (folder / LIBRARY / name).write_bytes(content.read())
