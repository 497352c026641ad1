"""Hooks of mkdocs: pages whose text lies beside code, pages written from code, and links between all of them."""

from __future__ import annotations

from typing import Any

import markdown
import pages
import reference
from markdown.preprocessors import Preprocessor
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

__all__ = ["AsForgesRead", "Prompts", "on_config", "on_files", "on_page_markdown"]

_BEFORE_FENCES = 29  # priorities of Python-Markdown: lines are normalized at 30, fences are read at 25


class Prompts(Preprocessor):
    """Examples of docstrings are code, not quotations of quotations."""

    def run(self, lines: list[str]) -> list[str]:
        """Fence them."""
        return pages.fenced_prompts(lines)


class AsForgesRead(markdown.Extension):
    """What belongs to a list item is indented by two spaces, not by four; lines after a prompt are code."""

    def extendMarkdown(self, md: markdown.Markdown) -> None:  # noqa: N802  the name that is called
        """Set the indentation, and look for prompts before fences are read."""
        md.tab_length = 2
        md.preprocessors.register(Prompts(md), "prompts", _BEFORE_FENCES)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Read Markdown as the repository's pages are written."""
    extensions: list[Any] = config.markdown_extensions
    extensions.append(AsForgesRead())
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are no files of docs/."""
    texts = {page: (pages.ROOT / path).read_text(encoding="utf-8") for page, path in pages.BESIDE_CODE.items()}
    own = {file.src_uri: file.content_string for file in files if file.is_documentation_page()}
    texts |= pages.linked_sources(texts | own)
    texts |= {page: pages.api_page(page) for page in pages.API}
    texts |= {page: reference.PAGES[page]() for page in pages.GENERATED}
    for page, text in texts.items():
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Return a page's text with links of the site, as Python-Markdown reads it."""
    uri = page.file.src_uri
    if uri in pages.API or uri in pages.GENERATED:
        return markdown
    drawn = pages.drawn(markdown, (pages.ROOT / pages.repository_path(uri)).parent)
    return pages.prepared(pages.with_site_links(drawn, uri))
