"""The bundled sample: made by its script, from its seed, and read without a mapping."""

import gzip
import runpy
from pathlib import Path

from replay.traces.ingest import ingest

EXAMPLES = Path(__file__).resolve().parents[4] / "examples"


def test_the_file_is_what_the_script_makes() -> None:
    script = runpy.run_path(str(EXAMPLES / "make_sample_trace.py"))
    made = script["sample_csv"]()
    assert gzip.decompress((EXAMPLES / "chat-hour.csv.gz").read_bytes()) == made
    assert script["sample_csv"](1) != made


def test_it_has_the_shape_it_claims(tmp_path: Path) -> None:
    path = EXAMPLES / "chat-hour.csv.gz"
    report = ingest(path, tmp_path / "out.parquet")
    assert report.format == "capreplay-csv"
    assert report.requests >= 20_000
    assert report.warnings == []
    assert 3_500 < report.span_s <= 3_600
    assert path.stat().st_size < 400_000
    assert report.profile.dispersion_1s is not None
    assert report.profile.dispersion_1s > 1.5, "burstier than Poisson"
    assert "synthetic" in (EXAMPLES / "README.md").read_text().lower()
