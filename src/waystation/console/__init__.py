"""The console: a web page that shows the current state of a fleet.

It uses a node of its own, which requests the status of the others from their worker
`waystation.status`. It needs Starlette, uvicorn and Jinja2: `pip install 'waystation[console]'`.
"""

from importlib.util import find_spec

from waystation.errors import LocalError

if any(find_spec(name) is None for name in ("jinja2", "starlette", "uvicorn")):
    raise LocalError(
        "the console needs Starlette, uvicorn and Jinja2, which are not all installed",
        rule="OB-4",
        hint="pip install 'waystation[console]'",
    )

from waystation.console.server import Console, Settings

__all__ = ["Console", "Settings"]
