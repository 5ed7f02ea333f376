"""The wheel holds what the service needs and nothing else, and works installed in an environment of its own."""

import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

PACKAGES = ("api", "worker", "replay", "models", "migrations")


def run(*command: str | Path, cwd: Path, **variables: str) -> str:
    """Standard output of a command; its standard error is in the failure if it fails."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "CAPREPLAY_"))}
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, env=kept | variables, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def wheel(project_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from the working tree without a network."""
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", folder, cwd=project_root)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """bin/ of a fresh environment with the wheel; what it depends on is lent by ours, except our own packages."""
    home = tmp_path_factory.mktemp("installed") / "env"
    run(sys.executable, "-m", "venv", "--without-pip", home, cwd=home.parent)
    python = home / "bin" / "python"
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=home.parent).strip())
    # A plain path, not a site folder: our own editable install there is not read, so the wheel must supply api etc.
    (site / "lent.pth").write_text(sysconfig.get_path("purelib") + "\n")
    run(
        sys.executable,
        "-m",
        "pip",
        "--python",
        python,
        "install",
        "--quiet",
        "--no-index",
        "--no-deps",
        "--ignore-installed",
        wheel,
        cwd=home.parent,
    )
    return home / "bin"


def tracked(project_root: Path, *patterns: str) -> set[str]:
    """Files of the packages in git's index or not ignored by it, by pattern."""
    listed = run("git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *patterns, cwd=project_root)
    return {name for name in listed.splitlines() if (project_root / name).is_file()}


def test_every_file_of_the_packages_is_inside(names: set[str], project_root: Path) -> None:
    missing = tracked(project_root, *PACKAGES) - names
    assert not missing


@pytest.mark.parametrize(
    "pattern",
    [
        "api/templates/*.html",
        "api/static/*.css",
        "api/static/*.js",
        "replay/hardware/data/*.csv",
        "replay/accuracy/*.md",
        "replay/steptime/data/*.json",
        "migrations/env.py",
        "migrations/versions/*.py",
    ],
)
def test_data_beside_the_code_is_inside(names: set[str], project_root: Path, pattern: str) -> None:
    files = tracked(project_root, f":(glob){pattern.replace('/*.', '/**/*.')}")
    assert files, f"no {pattern} in the project"
    assert files <= names


def test_nothing_else_is_inside(names: set[str]) -> None:
    tops = {name.split("/", 1)[0] for name in names}
    metadata = {top for top in tops if top.endswith(".dist-info")}
    assert tops - metadata == set(PACKAGES)
    assert not [name for name in names if name.endswith((".pyc", ".nbi", ".nbc"))]


def test_licence_and_notice_are_inside(names: set[str]) -> None:
    assert {name.rsplit("/", 1)[1] for name in names if ".dist-info/licenses/" in name} == {"LICENSE", "NOTICE"}


def test_the_installed_command_runs_its_own_copy(installed: Path, tmp_path: Path) -> None:
    where = run(installed / "python", "-c", "import api; print(api.__file__)", cwd=tmp_path).strip()
    assert Path(where).is_relative_to(installed.parent)
    assert "Usage: capreplay" in run(installed / "capreplay", "--help", cwd=tmp_path)


def test_the_installed_command_reads_its_catalogue(installed: Path, tmp_path: Path) -> None:
    answer = run(
        installed / "capreplay", "memory", "--model", "meta-llama/Llama-3.1-8B", "--gpu", "H100-SXM-80GB", "--tp", "1",
        "--json", cwd=tmp_path,
    )  # fmt: skip
    assert '"fits": true' in answer


def test_the_installed_command_migrates_an_empty_database(installed: Path, tmp_path: Path) -> None:
    run(installed / "capreplay", "migrate", cwd=tmp_path, CAPREPLAY_DATA_DIR=str(tmp_path / "data"))
    assert (tmp_path / "data" / "capreplay.db").stat().st_size > 0
