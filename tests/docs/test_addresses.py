"""Nothing in the repository points to a package registry or to one machine's folders."""

import re
import subprocess
from pathlib import Path

# Written apart so that this file does not hold what it looks for.
FORBIDDEN = [
    re.compile(pattern)
    for pattern in (
        r"py" + r"pi\.org",
        r"python" + r"hosted\.org",
        r"registry\.npm" + r"js",
        r"deb\." + r"debian\.org",
        r"docker\." + r"io",
        r"(?<![\w.])/wo" + r"rk/",
    )
]


def test_no_file_names_a_registry_host_or_a_local_folder(project_root: Path) -> None:
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=project_root, capture_output=True, text=True, check=True
    ).stdout
    found = []
    for name in filter(None, listed.split("\0")):
        path = project_root / name
        if not path.is_file():
            continue
        text = path.read_bytes().decode("utf-8", errors="ignore")
        found += [f"{name}: {match[0]}" for pattern in FORBIDDEN if (match := pattern.search(text))]
    assert found == []


def test_lock_files_hold_hashes_and_no_address(project_root: Path) -> None:
    locks = sorted(project_root.glob("requirements*.lock"))
    assert len(locks) == 3
    for lock in locks:
        text = lock.read_text()
        assert "://" not in text
        pins = re.findall(r"^[a-z0-9][^\s]*==", text, re.MULTILINE)
        blocks = re.split(r"^(?=[a-z0-9])", text, flags=re.MULTILINE)[1:]
        assert len(pins) == len(blocks) > 0
        assert all("--hash=sha256:" in block for block in blocks)


def test_the_two_environments_agree(project_root: Path) -> None:
    pin = re.compile(r"^([a-z0-9][^=\s]*)==([^\s;]+)", re.MULTILINE)
    product = dict(pin.findall((project_root / "requirements.lock").read_text()))
    development = dict(pin.findall((project_root / "requirements-dev.lock").read_text()))
    assert {name: development.get(name) for name in product} == product
