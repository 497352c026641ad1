"""Which pages the site has, where each one's text lies in the repository, and how that text becomes a page.

Pages beside code stay where they are: they come with the package. What a page links to and is no page (a script, a
notebook, a folder) becomes one: a listing. Nothing here needs mkdocs.
"""

from __future__ import annotations

import ast
import json
import os
import posixpath
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

__all__ = [
    "API",
    "BESIDE_CODE",
    "GENERATED",
    "ROOT",
    "api_page",
    "drawn",
    "exists",
    "fenced_prompts",
    "linked_sources",
    "links_of",
    "page_of",
    "prepared",
    "public_names",
    "repository_path",
    "source_page",
    "with_site_links",
]

ROOT = Path(__file__).resolve().parents[2]

BESIDE_CODE = {
    "index.md": "README.md",
    "changes.md": "CHANGELOG.md",
    "contributing.md": "CONTRIBUTING.md",
    "security.md": "SECURITY.md",
    "data.md": "arch/measured/README.md",
    "models/multicore.md": "gemm_eval/models/multicore/MODEL.md",
    "models/gpu.md": "gemm_eval/models/gpu/MODEL.md",
    "models/gpu-operations.md": "gemm_eval/models/gpu/OPERATIONS.md",
    "models/gpu-evidence.md": "gemm_eval/models/gpu/EVIDENCE.md",
    "models/w4a16.md": "gemm_eval/models/gpu/w4a16/MODEL.md",
    "models/triton.md": "gemm_eval/models/gpu/triton/MODEL.md",
    "models/transformers.md": "gemm_eval/transformer/MODELS.md",
    "models/serving.md": "gemm_eval/serving/SERVING.md",
    "models/training.md": "gemm_eval/training/TRAINING.md",
    "models/torch.md": "gemm_eval/torch/TORCH.md",
    "kernels.md": "gemm_eval/kernels/KERNELS.md",
    "sweeps.md": "gemm_eval/sweep/SCALE.md",
}
"""Page -> the file that is its text."""

API = {
    "api/gemm_eval.md": "gemm_eval",
    "api/arch.md": "gemm_eval.arch",
    "api/workload.md": "gemm_eval.workload",
    "api/mapping.md": "gemm_eval.mapping",
    "api/search.md": "gemm_eval.search",
    "api/evaluate.md": "gemm_eval.evaluate",
    "api/transformer.md": "gemm_eval.transformer",
    "api/estimate.md": "gemm_eval.estimate",
    "api/serving.md": "gemm_eval.serving",
    "api/training.md": "gemm_eval.training",
    "api/moe.md": "gemm_eval.moe",
    "api/sweep.md": "gemm_eval.sweep",
    "api/torch.md": "gemm_eval.torch",
    "api/kernels.md": "gemm_eval.kernels",
    "api/kernels-linear.md": "gemm_eval.kernels.linear",
    "api/autotune-triton.md": "gemm_eval.autotune.triton",
    "api/autotune-asm.md": "gemm_eval.autotune.asm",
    "api/report.md": "gemm_eval.report",
    "api/plots.md": "gemm_eval.report.plots",
    "api/measure.md": "gemm_eval.measure",
    "api/validation.md": "gemm_eval.validation",
}
"""Page -> the package, or module, whose public names it documents."""

GENERATED = ("reference/command-line.md", "reference/architecture-files.md", "reference/coefficients.md")
"""Pages without a file: written from the code when the site is built."""

_SOURCE = "source/"
_LISTED = (".ipynb", ".py", ".yaml")
_FENCE = re.compile(r"^( *)(`{3,})", re.MULTILINE)
_CODE_OR_LINK = re.compile(r"(?P<code>(?P<ticks>`+)[^`].*?(?P=ticks))|\]\((?P<link>[^)\s]+)\)", re.DOTALL)
_OUTSIDE = re.compile(r"[a-z]+:|#")
_NAMED_FENCE = re.compile(r"^(`{3,})(\w+) (\S+)$")
_CODE_INDENT = " " * 4
_LIST_ITEM = re.compile(r"^ *(?:[-*]|\d+\.) ")
_TIMES = re.compile(r"(?P<code>`[^`]+`)|(?<=[\w)\]])\*(?=[\w(])")
_DRAWING = re.compile(r"^!\[(?P<words>[^]]+)\]\((?P<path>[^)]+\.svg)\)$", re.MULTILINE)


def page_of(path: str) -> str:
    """Return the page (``models/gpu.md``) of a path in the repository (``gemm_eval/models/gpu/MODEL.md``)."""
    for page, text in BESIDE_CODE.items():
        if text == path:
            return page
    if path.startswith("docs/") and path.endswith((".md", ".png")):
        return path.removeprefix("docs/")
    return f"{_SOURCE}{path}.md"


def repository_path(page: str) -> str:
    """Return the path in the repository whose text a page has; the inverse of `page_of`."""
    if page.startswith(_SOURCE):
        return page.removeprefix(_SOURCE).removesuffix(".md")
    return BESIDE_CODE.get(page, f"docs/{page}")


def exists(path: str) -> bool:
    """Whether a path in the repository is there, or a page is that is written when the site is built."""
    return (ROOT / path).exists() or page_of(path) in (*GENERATED, *API)


def _parts(text: str) -> Iterator[tuple[bool, str]]:
    """(is it a fenced block, lines) of a Markdown text, in order."""
    fence, part = "", ""
    for line in text.splitlines(keepends=True):
        found = _FENCE.match(line)
        if found and (not fence or (found[2].startswith(fence) and not line.strip().strip("`"))):
            if fence:
                yield True, part + line
                fence, part = "", ""
                continue
            yield False, part
            fence, part = found[2], ""
        part += line
    yield bool(fence), part


def _outside_fences(text: str, change: Callable[[str], str]) -> str:
    return "".join(part if is_fence else change(part) for is_fence, part in _parts(text))


def links_of(text: str) -> list[str]:
    """Return what a Markdown text links to within the repository, without anchors."""
    found = []
    for is_fence, part in _parts(text):
        links = () if is_fence else (match["link"] for match in _CODE_OR_LINK.finditer(part))
        found += [link.split("#")[0] for link in links if link and not _OUTSIDE.match(link)]
    return found


def with_site_links(text: str, page: str) -> str:
    """Return a page's Markdown with links between files of the repository as links between pages.

    Raises:
        FileNotFoundError: it links to what is not there.
    """
    folder = posixpath.dirname(repository_path(page))

    def of_site(match: re.Match[str]) -> str:
        link = match["link"]
        if link is None or _OUTSIDE.match(link):
            return match[0]
        path, hash_, anchor = link.partition("#")
        path = posixpath.normpath(posixpath.join(folder, path))
        if not exists(path):
            raise FileNotFoundError(f"{repository_path(page)} links to {path}, which is not there")
        other = posixpath.relpath(page_of(path), posixpath.dirname(page) or ".")
        return f"]({other}{hash_}{anchor})"

    return _outside_fences(text, lambda part: _CODE_OR_LINK.sub(of_site, part))


def linked_sources(pages: dict[str, str]) -> dict[str, str]:
    """Page -> Markdown, of everything that pages (page -> Markdown) link to and that is no page yet."""
    found: dict[str, str] = {}
    waiting = list(pages.items())
    while waiting:
        page, text = waiting.pop()
        folder = posixpath.dirname(repository_path(page))
        for link in links_of(text):
            path = posixpath.normpath(posixpath.join(folder, link))
            other = page_of(path)
            if other.startswith(_SOURCE) and other not in found and (ROOT / path).exists():
                found[other] = source_page(path)
                waiting.append((other, found[other]))
    return found


def source_page(path: str) -> str:
    """Return the Markdown of a page that shows a file of the repository, or lists a folder."""
    where = ROOT / path
    if where.is_dir():
        names = sorted(item.name for item in where.iterdir() if item.suffix in _LISTED)
        return f"# `{path}`\n\n" + "".join(f"- [`{name}`]({where.name}/{name})\n" for name in names)
    text = where.read_text(encoding="utf-8")
    if where.suffix == ".ipynb":
        return "\n\n".join(part for cell in json.loads(text)["cells"] for part in _cell_parts(cell)) + "\n"
    return f"# `{path}`\n\n````{where.suffix.lstrip('.')}\n{text}````\n"


def _cell_parts(cell: dict[str, Any]) -> Iterator[str]:
    """Markdown of a cell of a notebook, with those of its outputs that are words or pictures."""
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        yield source
        return
    yield f"```python\n{source}\n```"
    for output in cell.get("outputs", ()):
        data = output.get("data", {"text/plain": output.get("text", "")})
        if "image/png" in data:
            picture = "".join(data["image/png"]).replace("\n", "")
            yield f'<img alt="what the cell draws" src="data:image/png;base64,{picture}">'
        elif words := "".join(data.get("text/plain", "")).rstrip():
            yield f"````text\n{words}\n````"


def prepared(text: str) -> str:
    """Return Markdown as Python-Markdown wants it, which knows less of it than forges do.

    Lists and tables need an empty line before them; a fence's file name is its title; ``a*b`` is no emphasis.
    """

    def spaced(part: str) -> str:
        lines: list[str] = []
        in_block = False
        for line in part.splitlines(keepends=True):
            starts = bool(_LIST_ITEM.match(line)) or line.startswith("|")
            if starts and not in_block and lines and lines[-1].strip():
                lines.append("\n")
            in_block = bool(line.strip()) and (in_block or starts)
            is_code = line.startswith(_CODE_INDENT)
            lines.append(line if is_code else _TIMES.sub(lambda match: match["code"] or r"\*", line))
        return "".join(lines)

    def titled(part: str) -> str:
        first, newline, rest = part.partition("\n")
        return _NAMED_FENCE.sub(r'\1\2 title="\3"', first) + newline + rest

    return "".join(titled(part) if is_fence else spaced(part) for is_fence, part in _parts(text))


def drawn(text: str, folder: Path) -> str:
    """Return Markdown with SVG drawings in place of links to them, so that they take the colours of the page.

    Args:
        text: Markdown.
        folder: what the links start from.
    """

    def inline(match: re.Match[str]) -> str:
        svg = (folder / match["path"]).read_text(encoding="utf-8").strip()
        return f'<figure class="drawing" markdown="0">\n{svg}\n<figcaption>{match["words"]}</figcaption>\n</figure>'

    return _DRAWING.sub(inline, text)


def fenced_prompts(lines: list[str]) -> list[str]:
    """Return lines of Markdown in which those from a prompt (``>>>``) to an empty line are a fenced block."""
    found: list[str] = []
    in_fence = in_example = False
    for line in [*lines, ""]:
        in_fence ^= bool(_FENCE.match(line))
        if not in_fence and not in_example and line.startswith(">>> "):
            found.append("```pycon")
            in_example = True
        elif in_example and not line.strip():
            found.append("```")
            in_example = False
        found.append(line)
    return found[:-1]


def public_names(module: str) -> list[str]:
    """Return what the `__all__` of a package or module lists, without importing it."""
    path = ROOT.joinpath(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return [str(name) for name in ast.literal_eval(node.value)]
    raise LookupError(f"{module} has no __all__")


def api_page(page: str) -> str:
    """Return the Markdown of an API page: what mkdocstrings is to write, name by name."""
    module = API[page]
    facade = set(public_names("gemm_eval")) if module != "gemm_eval" else set()
    names = [name for name in public_names(module) if not name.startswith("__")]
    lines = [f"# {module}", "", f"::: {module}", "    options:", "      members: false", ""]
    known = [name for name in names if name in facade]
    if known:
        back = os.path.relpath("api/gemm_eval.md", posixpath.dirname(page))
        words = ", ".join(f"[`{name}`]({back}#gemm_eval.{name})" for name in known)
        lines += [f"With names of [`gemm_eval`]({back}) itself: {words}.", ""]
    for name in names:
        if name not in facade:
            lines += [f"::: {module}.{name}", ""]
    return "\n".join(lines)
