"""What goes wrong is said where it went wrong; what users type is shown, never run."""

from __future__ import annotations

from pathlib import Path

from browser_tools import Visit, upload, write_trace

ATTACK = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"


def test_unknown_columns_are_named(visit: Visit, tmp_path: Path) -> None:
    path = tmp_path / "sales.csv"
    path.write_text("alpha,beta\n1,2\n3,4\n")
    upload(visit, path)
    text = visit.page.inner_text("main")
    assert "could not be read as a trace" in text
    assert "alpha" in text
    assert "Traceback" not in text


def test_bad_rows_are_named_by_line_and_column(visit: Visit, tmp_path: Path) -> None:
    path = tmp_path / "broken.csv"
    path.write_text("arrival_s,prompt_tokens,output_tokens\n" + "".join(f"{i},10,ten\n" for i in range(30)))
    upload(visit, path)
    text = visit.page.inner_text("main")
    assert "line 2" in text
    assert "output_tokens" in text


def test_an_upload_that_is_refused_says_so_on_the_page(visit: Visit, tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("x\n")
    visit.go("/")
    visit.page.set_input_files("#file", path)
    visit.page.click("summary")
    visit.page.fill("#f-map", "when=ts")
    visit.page.click("#upload-button")
    visit.expected.append("422")
    visit.page.wait_for_selector("#upload-message.error")
    assert "arrival" in visit.page.inner_text("#upload-message")
    assert visit.page.is_enabled("#upload-button")


def test_an_empty_plan_form_shows_each_fault_at_its_field(visit: Visit) -> None:
    visit.go("/plans/new")
    visit.expected.append("422")
    page = visit.page
    page.fill("#f-growth", "much")
    page.fill("#f-limit_0", "")
    page.fill("#f-limit_1", "")
    page.click("text=Start the plan")
    page.wait_for_function("() => document.activeElement.id === 'faults'")
    assert page.input_value("#f-growth") == "much"
    for name in ("trace", "growth", "model"):
        assert page.get_attribute(f"#f-{name}", "aria-invalid") == "true", name
        described = page.get_attribute(f"#f-{name}", "aria-describedby") or ""
        assert any(page.is_visible(f"#{one}") for one in described.split() if one.startswith("e-")), name
    assert "choose at least one GPU type" in page.inner_text("#faults")
    assert "give at least one limit" in page.inner_text("#faults")
    page.click("#faults >> text=Model")
    assert page.evaluate("document.activeElement.id") == "f-model"


def test_a_near_miss_of_a_model_is_answered_with_the_nearest(visit: Visit, planned: dict[str, str]) -> None:
    visit.go(planned["report"])
    visit.expected.append("422")
    visit.page.click("text=What if?")
    visit.page.fill("#f-model", "meta-llama/Llama-3.1-9B")
    visit.page.click("text=Start the plan")
    assert "meta-llama/Llama-3.1-8B" in visit.page.inner_text("#e-model")


def test_names_are_shown_and_not_run(visit: Visit, tmp_path: Path) -> None:
    upload(visit, write_trace(tmp_path / "t.csv", shift=2), ATTACK)
    assert visit.page.inner_text("h1") == ATTACK
    for path in ("/", "/traces", "/plans/new"):
        visit.go(path)
        assert visit.page.title() != "owned"
        assert visit.page.locator("img").count() == 0


def test_pages_that_are_not_there(visit: Visit) -> None:
    visit.expected.append("404")
    for path in ("/traces/trc_" + "0" * 32, "/jobs/job_" + "0" * 32, "/reports/rep_" + "0" * 32, "/reports/nonsense"):
        visit.go(path)
        assert visit.page.inner_text("h1") == "Not found"
        assert visit.page.is_visible("text=Back to the first page")


def test_a_form_without_its_token_is_refused(visit: Visit, planned: dict[str, str]) -> None:
    visit.go(planned["trace"])
    visit.expected.append("403")
    visit.page.eval_on_selector("main input[name=csrf]", "field => { field.value = 'forged'; }")
    visit.page.click("text=Delete this trace")
    visit.page.wait_for_selector("main:has-text('out of date')")
    visit.go(planned["trace"])
    assert visit.page.is_visible("text=How it was read")
