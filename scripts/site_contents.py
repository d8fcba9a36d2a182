"""The order of the site's pages: mkdocs asks for it when it builds docs/ (see mkdocs.yml).

Sections and pages stand as in the list of docs/index.md: `- **Section**: [page](…), [page](…)`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SECTIONS = re.compile(
    r"^- \*\*(?P<title>[^*]+)\*\*:(?P<pages>.*?)(?=^- |\Z)", re.MULTILINE | re.DOTALL
)
PAGES = re.compile(r"\]\(([\w./-]+\.md)\)")
API = "reference/api.md"
MODULES = "reference/api/*.md"


def on_config(config: Any) -> Any:
    """Set the contents, which mkdocs would otherwise sort by the names of files."""
    index = Path(config.docs_dir, "index.md").read_text("utf-8")
    sections = [
        {found["title"]: list(_pages(found["pages"], Path(config.docs_dir)))}
        for found in SECTIONS.finditer(index)
    ]
    config.nav = ["index.md", *sections]
    return config


def _pages(listed: str, docs: Path) -> Iterator[Any]:
    """The pages of a section; those of the API have a page for each module below them."""
    for page in PAGES.findall(listed):
        if page == API:
            modules = sorted(path.relative_to(docs).as_posix() for path in docs.glob(MODULES))
            yield {"The API": [page, *modules]}
        else:
            yield page
