"""The HTML page of a report: complete, escaped, and alone when it says so."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from html import unescape
from html.parser import HTMLParser
from typing import Any

import pytest
from pydantic import ValidationError
from report_documents import (
    burst_document,
    burst_plan_document,
    empty_plan_document,
    plan_document,
    replay_document,
    without_range,
)

from api.reports import render_html
from api.reports.html import plotly_script

DOCUMENTS = {"plan": plan_document(), "empty": empty_plan_document(), "replay": replay_document()}
DOCUMENTS |= {"saturated": replay_document(load=1.7), "burst": burst_document(), "burst plan": burst_plan_document()}
SHOWN_UNDER_OTHER_WORDS = {
    "schema", "kind", "code", "price_id", "status", "metric", "key", "provenance", "calibration_id", "version",
}  # fmt: skip


class Page(HTMLParser):
    """What a browser would load or show."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.text: list[str] = []
        self.loads: list[str] = []
        self.inline_scripts = 0
        self.ids: list[str] = []
        self.tags: list[str] = []
        self._inside = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.tags.append(tag)
        self._inside = tag
        if tag in ("script", "img", "link", "iframe"):
            self.loads += [value for key in ("src", "href") if (value := values.get(key))]
        if tag == "script" and "src" not in values and values.get("type") != "application/json":
            self.inline_scripts += 1
        if identity := values.get("id"):
            self.ids.append(identity)

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside not in ("script", "style"):
            self.text.append(data)

    @property
    def words(self) -> str:
        return " ".join(" ".join(self.text).split())


def sentences(value: Any, key: str = "") -> Iterator[str]:
    """Every text of a document that a reader must find on the page."""
    if isinstance(value, dict):
        for name, inner in value.items():
            if name not in SHOWN_UNDER_OTHER_WORDS:
                yield from sentences(inner, name)
    elif isinstance(value, list):
        for inner in value:
            yield from sentences(inner, key)
    elif isinstance(value, str) and value:
        yield value


@pytest.mark.parametrize("kind", DOCUMENTS)
def test_every_text_of_the_document_is_on_the_page(kind: str) -> None:
    document = DOCUMENTS[kind]
    words = Page(render_html(document, standalone=False)).words.replace("_", " ")
    missing = [text for text in sentences(document) if text.replace("_", " ") not in words]
    assert missing == []


def test_the_figures_of_the_best_candidate_are_on_the_page() -> None:
    words = Page(render_html(plan_document(), standalone=False)).words
    costs, times = ("10.00", "7,300.00", "2.44", "0.383"), ("80 %", "200 ms", "1,000", "123,456")
    for figure in (*costs, *times, "27,136", "434,176", "53.00", "79.19"):
        assert figure in words, figure


@pytest.mark.parametrize("kind", DOCUMENTS)
@pytest.mark.parametrize("standalone", [False, True])
def test_pages_load_only_what_they_may(kind: str, standalone: bool) -> None:
    html = render_html(DOCUMENTS[kind], standalone=standalone)
    page = Page(html)
    if standalone:
        assert page.loads == []
        assert plotly_script() in html
        styles = html.split("<style>")[1].split("</style>")[0]
        assert "url(" not in styles
        assert "@import" not in styles
        assert not re.search(r"(?:src|href|action)\s*=\s*[\"']?(?:https?:)?//", html.replace(plotly_script(), ""))
    else:
        assert page.loads
        assert all(one.startswith("/static/") for one in page.loads)
        assert page.inline_scripts == 0
        assert " style=" not in html
        assert not re.search(r"\son[a-z]+=", html)


@pytest.mark.parametrize("field", ["name", "model", "trace_name", "gpu", "reason"])
def test_user_text_is_escaped(field: str) -> None:
    attack = "</script><script>alert(1)</script>\"'><img src=x onerror=alert(1)>"
    document = plan_document()
    if field == "trace_name":
        document["workload"]["trace_name"] = attack
    elif field == "gpu":
        document["recommendations"][0]["gpu"] = attack
    elif field == "reason":
        document["infeasible"][0]["reason"] = attack
    else:
        document[field] = attack
    html = render_html(document, standalone=False)
    page = Page(html)
    assert "<script>alert" not in html
    assert "<img" not in html
    assert "img" not in page.tags
    assert attack in unescape(" ".join(page.text))


def test_chart_data_is_json_and_has_a_table_beside_it() -> None:
    html = render_html(plan_document(), standalone=False)
    page = Page(html)
    data = re.findall(r'<script type="application/json" id="data-([a-z0-9-]+)">(.*?)</script>', html, re.S)
    names = [name for name, _ in data]
    assert {"alternatives", "latency", "workload", "capacity-1", "memory"} <= set(names)
    for name, text in data:
        assert json.loads(text)["data"], name
        assert f"plot-{name}" in page.ids
        assert f"table-{name}" in page.ids


def test_ids_are_unique() -> None:
    for document in DOCUMENTS.values():
        ids = Page(render_html(document, standalone=False)).ids
        assert len(ids) == len(set(ids))


def test_a_saturated_replay_says_that_its_latencies_are_no_operating_point() -> None:
    assert "no operating point" in Page(render_html(replay_document(load=1.7), standalone=False)).words
    assert "no operating point" not in Page(render_html(replay_document(load=0.7), standalone=False)).words


def test_a_foreign_document_is_refused() -> None:
    with pytest.raises(ValidationError):
        render_html({"schema": "capreplay.report/2", "kind": "plan"}, standalone=False)


def test_a_replay_shows_its_objectives_goodput_splits_and_course() -> None:
    page = Page(render_html(replay_document(), standalone=False))
    for words in (
        "Asked for: ttft_p99 <= 2 s; itl_p99 <= 100 ms.",
        "requests scored (warm-up and cool-down trimmed) 19,000",
        "requests within every limit: ttft p99 18,765 (98.76%)",
        "goodput: those per second 5.21",
        "=chat<b>",
        "(7 others)",
        "98.765 %",
        "Requests in the system",
    ):
        assert words in page.words, words
    assert len(page.ids) == len(set(page.ids))
    old = replay_document() | {"timeline": None, "splits": [], "objectives": []}
    assert "Over time" not in Page(render_html(old, standalone=False)).words


def test_a_plan_page_says_how_sure_the_count_is() -> None:
    document = plan_document()
    html = render_html(document, standalone=False)
    assert "<dd>4 (3 to 6)</dd>" in html
    assert "<dd>7.50 to 15.00</dd>" in html
    assert html.count("How sure: ") == 1 + len(document["recommendations"])
    for one in document["recommendations"]:
        one["certainty"] = None
    html = render_html(document, standalone=False)
    assert "How sure: " not in html
    assert "<dt>GPUs</dt><dd>4</dd>" in html


def test_candidates_without_a_range_are_apart_and_no_headline_is_green() -> None:
    document = plan_document()
    html = unescape(render_html(document, standalone=False))
    assert '<header class="verdict good"' in html
    assert "Measure first" not in html
    document["recommendations"][1] = without_range(document["recommendations"][1])
    html = unescape(render_html(document, standalone=False))
    assert "Do not buy these on this report" in html
    assert "<li>5 x TP2 A100-SXM-80GB: No range: a step may be off by 297 %, which bounds no count.</li>" in html
    assert "analytic, measure first" in html
    assert "measured first after all others" in html
    document["recommendations"] = [without_range(one) for one in document["recommendations"]]
    document["verdict"] = {"status": "measure_first", "sentence": "No range."}
    html = unescape(render_html(document, standalone=False))
    assert '<header class="verdict" id="verdict">' in html
    assert "<dd>4, no range</dd>" in html
