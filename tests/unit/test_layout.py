"""The shape of the code base: what import-linter and ruff cannot see."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("api", "worker", "replay", "models", "migrations")
LONGEST_MODULE_LINES = 500
# A scheduler step is one long page on purpose: numba inlines nothing over it.
MAY_BE_LONGER = (ROOT / "replay" / "kernels",)


def modules() -> list[Path]:
    return sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


def test_modules_stay_short() -> None:
    lengths = {
        str(path.relative_to(ROOT)): len(path.read_text().splitlines())
        for path in modules()
        if not path.is_relative_to(MAY_BE_LONGER[0])
    }
    assert {name: lines for name, lines in lengths.items() if lines > LONGEST_MODULE_LINES} == {}


def test_every_module_says_what_it_is_for() -> None:
    silent = [
        str(path.relative_to(ROOT))
        for path in modules()
        if path.read_text().strip() and ast.get_docstring(ast.parse(path.read_text())) is None
    ]
    assert silent == []


def test_unit_tests_mirror_the_packages() -> None:
    folders = {
        path.parent.relative_to(ROOT / "tests" / "unit") for path in (ROOT / "tests" / "unit").rglob("test_*.py")
    }
    strangers = [str(folder) for folder in folders if not (ROOT / folder).exists() and folder != Path()]
    assert strangers == []


@pytest.mark.parametrize("module", ["api.app", "api.cli"])
def test_the_web_process_loads_no_heavy_library(module: str) -> None:
    program = f"import sys, {module}; print(*sorted({{'numba', 'polars', 'plotly', 'llvmlite'}} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []


def test_the_domain_package_imports_nothing_at_its_top() -> None:
    tree = ast.parse((ROOT / "replay" / "__init__.py").read_text())
    assert [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)] == []
