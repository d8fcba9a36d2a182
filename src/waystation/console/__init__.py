"""The console: a fleet as it is now, on a page in a browser.

It stands on a node of its own, which asks the others what their worker `waystation.status` tells;
nothing here knows a socket but `server.py`. It needs Starlette, uvicorn and Jinja2:
`pip install 'waystation[console]'`.
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
