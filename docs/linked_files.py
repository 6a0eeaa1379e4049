"""A hook of MkDocs: pages may link to files of the repository that are no pages, and the site has copies of these.

A link such as ``../../examples/count_ngrams.py`` works where the repository is read, and here. One that leads to no
file is a warning, which ``mkdocs build --strict`` takes for an error. Links to folders become plain text.
"""

from __future__ import annotations

import logging
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"(?P<image>!?)\[(?P<text>[^\]]*)\]\((?P<path>(?:\.\./)[^)#\s]*)(?:#[^)\s]*)?\)")
log = logging.getLogger("mkdocs.hooks.linked_files")


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:
    """Turn links out of the folder of pages into links to copies."""
    folder = posixpath.dirname(page.file.src_uri)

    def replace(link: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join("docs", folder, link["path"]))
        if path.startswith("docs/"):
            return link[0]
        source = ROOT / path
        if path.startswith("../") or not source.exists():
            log.warning("%s links to %s, and there is no such file", page.file.src_uri, link["path"])
            return link[0]
        if source.is_dir():
            return link["text"]
        # As text: MkDocs would take Markdown for a page, and browsers would save a .cu.
        name = f"files/{path}" if source.suffix in (".png", ".svg") else f"files/{path}.txt"
        if files.get_file_from_path(name) is None:
            files.append(File.generated(config, name, abs_src_path=str(source)))
        return f"{link['image']}[{link['text']}]({posixpath.relpath(name, folder or '.')})"

    return LINK.sub(replace, markdown)
