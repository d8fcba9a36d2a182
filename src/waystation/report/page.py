"""The page: its sections in order, put into the template."""

from __future__ import annotations

from base64 import b64encode
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from waystation.report.blocks import Section
from waystation.report.facts import Facts
from waystation.report.incidents import incidents
from waystation.report.numbers import count
from waystation.report.overview import findings, tiles
from waystation.report.routes import churn, stale
from waystation.report.spread import fan_out
from waystation.report.svg import named
from waystation.report.times import span_said
from waystation.report.timing import latency
from waystation.report.traffic import drops, nodes, topology
from waystation.report.verdicts import expected_against_actual, followed
from waystation.report.what_if import what_if

_PACKAGE: Final = "waystation.report"
_TEMPLATES: Final = "templates"


def sections(facts: Facts, tables: str | Path) -> list[Section]:
    """All sections, in the order of the page."""
    return [
        incidents(facts, tables),
        *what_if(facts, tables),
        topology(facts),
        drops(facts),
        expected_against_actual(facts, tables),
        nodes(facts),
        latency(facts),
        churn(facts),
        stale(facts, tables),
        fan_out(facts, tables),
        followed(facts, tables),
    ]


def rendered(facts: Facts, tables: str | Path, title: str) -> str:
    """The whole page, self-contained."""
    environment = Environment(
        loader=PackageLoader(_PACKAGE, _TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["count"] = count
    script = _own("page.js")
    return environment.get_template("page.html").render(
        title=title,
        tables=str(tables),
        span="" if facts.span is None else span_said(*facts.span),
        reach=facts.reach.said(named) if facts.reach is not None and facts.reach.nodes else "",
        is_whole=facts.reach is None or not facts.reach.missing,
        tiles=tiles(facts),
        findings=findings(facts),
        sections=sections(facts, tables),
        style=Markup(_own("style.css")),  # noqa: S704 - our own file
        script=Markup(script),  # noqa: S704 - our own file
        script_hash=b64encode(sha256(script.encode()).digest()).decode(),
    )


def _own(name: str) -> str:
    return files(_PACKAGE).joinpath(_TEMPLATES, name).read_text("utf-8")
