"""A visitor pastes a log, sends measurements, and sees how far the fit is off."""

from __future__ import annotations

from pathlib import Path

import pytest
from browser_tools import JOB_TIMEOUT_MS, Open, Visit
from measurement_files import TRUTH, table

LOG = (
    "vLLM API server version 0.11.0\nnon-default args: {'model': 'Qwen/Qwen3-14B'}\nGPU KV cache size: 400,000 tokens\n"
)


@pytest.fixture(scope="session")
def steps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return table(tmp_path_factory.mktemp("steps") / "steps.csv", TRUTH, noise=0.03)


def fit(visit: Visit, steps: Path, name: str) -> str:
    """Fills the form in from a log and sends the file; the path of the calibration's page."""
    page = visit.page
    visit.go("/calibrations")
    page.fill("#f-log", LOG)
    page.click("text=Read the log")
    assert page.input_value("#f-model") == "Qwen/Qwen3-14B"
    assert "num_gpu_blocks_override=25000" in page.input_value("#f-knobs")
    page.set_input_files("#f-measurements", steps)
    page.select_option("#f-gpu", "H100-SXM")
    page.fill("#f-name", name)
    page.click("main button:has-text('Fit')")
    page.wait_for_url("**/calibrations/cal_*", timeout=JOB_TIMEOUT_MS)
    return page.url.removeprefix(visit.base)


def test_from_a_log_and_a_file_to_the_residuals(visit: Visit, open_page: Open, steps: Path) -> None:
    page = visit.page
    where = fit(visit, steps, "mine")
    for chart in ("agreement", "residuals"):
        page.wait_for_selector(f"#plot-{chart} .main-svg")
        assert page.locator(f"#plot-{chart} .points path").count() > 50
    assert "decode" in page.inner_text("#errors")
    assert "kernels_factor" in page.inner_text("#parameters")
    page.click("text=Table: Residuals by size")
    assert page.locator("#table-residuals tbody tr").count() == page.locator("#table-agreement tbody tr").count()
    visit.go("/calibrations")
    assert page.is_visible(f"a[href='{where}']")
    narrow = open_page(width=320, height=256)
    for path in ("/calibrations", where):
        narrow.go(path)
        assert narrow.page.evaluate("document.scrollingElement.scrollWidth") <= 320, path
    visit.go(where)
    page.click("text=Delete this calibration")
    page.wait_for_url("**/calibrations")
    assert page.is_visible("text=No calibrations yet")


def test_without_script_a_fault_is_at_its_field(open_page: Open) -> None:
    plain = open_page(javascript=False)
    plain.expected.append("422")
    plain.go("/calibrations")
    plain.page.click("main button:has-text('Fit')")
    for name in ("measurements", "model", "gpu"):
        assert plain.page.get_attribute(f"#f-{name}", "aria-invalid") == "true", name
        assert plain.page.is_visible(f"#e-{name}"), name
