"""What the documents name exists: links, make targets, verbs."""

import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)(?:\s+\"[^\"]*\")?\)")
CODE = re.compile(r"```.*?```|`[^`\n]+`", re.DOTALL)
MAKE = re.compile(r"(?:^|[\s`(;&])make ([a-z][a-z-]*)", re.MULTILINE)
VERB = re.compile(r"(?:^|[\s`(/;&$])capreplay ([a-z][a-z-]*)((?:[^\n`|;&>]|\\\n)*)", re.MULTILINE)


def documents() -> list[Path]:
    top = [ROOT / name for name in ("README.md", "CONTRIBUTING.md")]
    return [*top, *sorted((ROOT / "docs").rglob("*.md"))]


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def code_of(path: Path) -> str:
    return "\n".join(CODE.findall(path.read_text(encoding="utf-8")))


def anchors(path: Path) -> set[str]:
    """The anchors of a Markdown file's headings, as code hosts make them."""
    text = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    titles = re.findall(r"^#+ +(.+?) *#*$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


@cache
def help_of(verb: str) -> str:
    program = Path(sys.executable).with_name("capreplay")
    done = subprocess.run([str(program), verb, "--help"], capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else ""


@pytest.mark.parametrize("document", documents(), ids=relative)
def test_links_lead_somewhere(document: Path) -> None:
    prose = re.sub(r"```.*?```", "", document.read_text(encoding="utf-8"), flags=re.DOTALL)
    broken = []
    for target in LINK.findall(prose):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        file = (document.parent / name).resolve() if name else document
        found = file.exists() and (not anchor or file.suffix != ".md" or anchor in anchors(file))
        if not found or not file.is_relative_to(ROOT):
            broken.append(target)
    assert not broken


@pytest.mark.parametrize("document", documents(), ids=relative)
def test_make_targets_exist(document: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {name for name in MAKE.findall(code_of(document)) if name not in targets} == set()


@pytest.mark.parametrize("document", documents(), ids=relative)
def test_verbs_and_their_options_exist(document: Path) -> None:
    wrong = []
    for verb, rest in VERB.findall(code_of(document)):
        text = help_of(verb)
        if not text:
            wrong.append(verb)
            continue
        options = re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", rest)
        wrong += [f"{verb} {option}" for option in options if not _offers(verb, text, rest, option)]
    assert not wrong


def _offers(verb: str, text: str, rest: str, option: str) -> bool:
    """Whether the verb, or the sub-verb that follows it, has the option."""
    if re.search(rf"(?<![\w-]){re.escape(option)}(?![\w-])", text):
        return True
    words = rest.split()
    return bool(words) and re.fullmatch(r"[a-z-]+", words[0]) is not None and option in _help_of_sub(verb, words[0])


@cache
def _help_of_sub(verb: str, sub: str) -> str:
    program = Path(sys.executable).with_name("capreplay")
    return subprocess.run([str(program), verb, sub, "--help"], capture_output=True, text=True, check=False).stdout


@pytest.mark.parametrize("index", [ROOT / "docs" / "README.md", ROOT / "docs" / "adr" / "README.md"], ids=relative)
def test_each_index_names_every_page_of_its_folder(index: Path) -> None:
    linked = {(index.parent / target.partition("#")[0]).resolve() for target in LINK.findall(index.read_text())}
    pages = set(index.parent.glob("*.md")) - {index}
    assert sorted(map(relative, pages - linked)) == []


def test_every_make_target_is_explained() -> None:
    text = (ROOT / "Makefile").read_text()
    (phony,) = re.findall(r"^\.PHONY: ((?:.*\\\n)*.*)$", text, re.MULTILINE)
    explained = set(re.findall(r"^([a-z-]+):.*## ", text, re.MULTILINE))
    assert set(phony.replace("\\", " ").split()) - explained == {"chromium"}
