"""What every test can use: real servers, the reference data, Chromium. Nothing here is skipped in silence."""

import os
from pathlib import Path

import hypothesis
import pytest
from services import session

pytest_plugins = ["services.fixtures"]

ROOT = Path(__file__).resolve().parent.parent
REFERENCE_DIR = Path(os.environ.get("CAPREPLAY_REFERENCE_DIR", ROOT.parent / "shared")).resolve()
REFERENCE_ABSENT = (
    f"no reference data at {REFERENCE_DIR}: set CAPREPLAY_REFERENCE_DIR to the folder that holds reference/ and traces/"
)
KEPT_VARIABLES = ("CAPREPLAY_TEST_", "CAPREPLAY_REFERENCE_DIR")
skipped_for_reference: list[str] = []


def pytest_configure(config: pytest.Config) -> None:
    # A setting of the developer's own shell must not point a test at a real deployment.
    for name in [name for name in os.environ if name.startswith("CAPREPLAY_") and not name.startswith(KEPT_VARIABLES)]:
        del os.environ[name]
    # Kernels are compiled once, not once for each data folder of a test: services and workers inherit this.
    os.environ.setdefault("NUMBA_CACHE_DIR", str(Path.home() / ".cache" / "capreplay" / "numba"))
    # No test depends on how fast the machine is.
    hypothesis.settings.register_profile(
        "any-speed", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
    )
    hypothesis.settings.load_profile("any-speed")
    if not hasattr(config, "workerinput"):
        session.open_session()


def pytest_unconfigure() -> None:
    if session.is_owner():
        session.close_session()


def has_reference() -> bool:
    return (REFERENCE_DIR / "reference").is_dir()


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("reference") and not has_reference():
        pytest.skip(REFERENCE_ABSENT)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.skipped and isinstance(report.longrepr, tuple) and REFERENCE_ABSENT in report.longrepr[2]:
        skipped_for_reference.append(report.nodeid)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if skipped_for_reference:
        terminalreporter.section("not checked: reference data is absent")
        terminalreporter.line(f"{len(skipped_for_reference)} tests skipped: {REFERENCE_ABSENT}")
        for nodeid in skipped_for_reference:
            terminalreporter.line(f"  {nodeid}")


@pytest.fixture(scope="session")
def reference_dir() -> Path:
    """The folder that holds reference/ and traces/; the test is skipped, and counted, where it is absent."""
    if not has_reference():
        pytest.skip(REFERENCE_ABSENT)
    return REFERENCE_DIR


@pytest.fixture(scope="session")
def project_root() -> Path:
    """The repository's root."""
    return ROOT
