"""The order of the site's pages: mkdocs asks for it when it builds docs/ (see mkdocs.yml).

Pages stand in the order in which docs/index.md names them, under the kind that they are.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

KINDS = {
    "tutorial": "Tutorial",
    "how-to": "How-to",
    "reference": "Reference",
    "explanation": "Explanation",
    "decisions": "Decisions",
}


def on_config(config: Any) -> Any:
    """Set the contents, which mkdocs would otherwise sort by the names of files."""
    index = Path(config.docs_dir, "index.md").read_text("utf-8")
    pages = list(dict.fromkeys(re.findall(r"\]\(([\w./-]+\.md)\)", index)))
    config.nav = ["index.md"]
    for folder, title in KINDS.items():
        config.nav.append({title: [page for page in pages if page.startswith(f"{folder}/")]})
    return config
