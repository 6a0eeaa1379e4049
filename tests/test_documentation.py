"""README and the pages of the site: their Python code runs, and the links of what lies outside of docs/ lead somewhere.

The blocks of a page run in order, in one namespace of a process of their own. Three comments steer that:

    <!-- needs cuda -->        before a block: it runs where there is a GPU; ``needs 2 cuda`` where there are two
    <!-- not run: reason -->   before a block: it is only compiled
    <!-- check                 lines that readers do not see, and that assert what the page says
    -->

A block that imports a framework which is not installed is skipped, and so are the blocks behind it.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.frameworks import gpu_count, need_cuda, sees_gpu

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
NOT_RUN = ("design", "reference")  # for those who change gpuhash; generated from docstrings
PAGES = [ROOT / "README.md", *(page for page in sorted(DOCS.rglob("*.md")) if page.parent.name not in NOT_RUN)]
BLOCK = re.compile(
    r"(?:^<!-- (?P<mark>needs|not run)(?P<rest>[^\n]*) -->\n\n?)?^```python[^\n]*\n(?P<shown>.*?)^```$"
    r"|^<!-- check\n(?P<hidden>.*?)^-->$",
    re.MULTILINE | re.DOTALL,
)
LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]*))?\)")
#: Parts of gpuhash that import a framework.
FRAMEWORKS = {"distributed": "torch", "jax": "jax", "tensorflow": "tensorflow", "torch": "torch"}
# The lines keep their numbers, so that a traceback shows the page's.
RUNNER = """
import json, sys
page, blocks = json.load(sys.stdin)
names = {"__name__": "__main__"}
for line, code in blocks:
    exec(compile("\\n" * (line - 1) + code, page, "exec"), names)
"""


@dataclass(frozen=True)
class Block:
    """Code of a page, and the number of its first line."""

    line: int
    code: str
    gpus: int = 0
    is_run: bool = True

    def missing(self) -> str | None:
        """A package that it imports and that is not installed."""
        for node in ast.walk(ast.parse(self.code)):
            modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            modules += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for module in modules:
                package, _, part = module.partition(".")
                if package == "gpuhash":
                    package = FRAMEWORKS.get(part.partition(".")[0], package)
                if importlib.util.find_spec(package) is None:
                    return package
        return None


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text()
    blocks = []
    for match in BLOCK.finditer(text):
        group = "hidden" if match["shown"] is None else "shown"
        gpus = 0
        if match["mark"] == "needs":
            wanted = re.fullmatch(r" (?:(\d+) )?cuda", match["rest"])
            assert wanted, f"{page}: <!-- needs{match['rest']} -->, expected 'needs cuda' or 'needs 2 cuda'"
            gpus = int(wanted[1] or 1)
        line = text.count("\n", 0, match.start(group)) + 1
        blocks.append(Block(line, match[group], gpus, match["mark"] != "not run"))
    return blocks


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", [page for page in PAGES if blocks_of(page)], ids=name_of)
def test_the_code_of_a_page(page, tmp_path):
    """It runs when pasted, one block after the other."""
    chosen: list[Block] = []
    reason = "no block is to be run"
    for block in blocks_of(page):
        compile(block.code, str(page), "exec")
        if not block.is_run:
            continue
        if package := block.missing():
            reason = f"{package} is not installed"
            break
        if block.gpus > gpu_count() or (block.gpus and not sees_gpu("torch")):
            reason = f"line {block.line} needs GPUs"
            if os.environ.get("GPUHASH_REQUIRE_CUDA") == "1" and block.gpus == 1:
                need_cuda()
            continue
        chosen.append(block)
    if not chosen:
        pytest.skip(reason)
    run = subprocess.run(
        [sys.executable, "-P", "-c", RUNNER],
        input=json.dumps([str(page), [(block.line, block.code) for block in chosen]]),
        capture_output=True,
        text=True,
        timeout=300,
        cwd=tmp_path,
        # JAX's arrays lie where the tables do that name no device.
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "JAX_PLATFORMS": "cpu"},
    )
    assert run.returncode == 0, f"{name_of(page)}: {run.stderr}"


def test_every_block_of_python_is_found():
    """None is passed over because of how it is written."""
    for page in PAGES:
        written = re.findall(r"^ *```(?:python|py)\b|^ *<!-- check", page.read_text(), re.MULTILINE)
        assert len(blocks_of(page)) == len(written), page


def anchors_of(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "findings/README.md"])
def test_links(name):
    """Those of the site's pages are MkDocs' to check, in .ci/run."""
    page = ROOT / name
    for path, anchor in LINK.findall(page.read_text()):
        target = page.parent / path if path else page
        assert target.exists(), f"{name} links to {path}"
        assert not anchor or anchor in anchors_of(target), f"{name} links to {path}#{anchor}"
