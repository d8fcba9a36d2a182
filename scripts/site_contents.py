"""The order of the site's pages: mkdocs asks for it when it builds docs/ (see mkdocs.yml).

Sections and pages stand as in the list of docs/index.md: `- **Section**: [page](…), [page](…)`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

SECTIONS = re.compile(
    r"^- \*\*(?P<title>[^*]+)\*\*:(?P<pages>.*?)(?=^- |\Z)", re.MULTILINE | re.DOTALL
)
PAGES = re.compile(r"\]\(([\w./-]+\.md)\)")


def on_config(config: Any) -> Any:
    """Set the contents, which mkdocs would otherwise sort by the names of files."""
    index = Path(config.docs_dir, "index.md").read_text("utf-8")
    sections = [
        {found["title"]: PAGES.findall(found["pages"])} for found in SECTIONS.finditer(index)
    ]
    config.nav = ["index.md", *sections]
    return config
