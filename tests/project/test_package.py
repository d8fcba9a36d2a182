"""The package: light to import, whole when built, layered as the architecture says."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import waystation

ROOT = Path(__file__).resolve().parents[2]


def test_importing_waystation_stays_light() -> None:
    code = "import waystation, sys; print(*sorted({m.partition('.')[0] for m in sys.modules}))"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    heavy = {"asyncio", "click", "pyspark", "pyarrow", "pandas", "mqtt5", "starlette", "uvicorn"}
    assert heavy.isdisjoint(loaded)


def test_every_exported_name_is_there() -> None:
    for name in waystation.__all__:
        assert getattr(waystation, name) is not None


def test_the_layers_hold() -> None:
    tool = Path(sys.executable).with_name("lint-imports")
    result = subprocess.run(
        [tool, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout


def test_a_wheel_holds_the_package_and_its_data(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    [wheel] = tmp_path.glob("*.whl")
    assert wheel.name.startswith(f"waystation-{waystation.__version__}-")
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {
        "waystation/py.typed",
        "waystation/rules/rules.toml",
        "waystation/rules/proofs.json",
        "waystation/core/routing.py",
    } <= names
    assert not any(name.startswith(("tests/", "benchmarks/")) for name in names)
