"""Error of steps put together from the shipped kernel timings: written into the files, or printed for the docs.

Usage: python bench/steptime_errors.py write [STEPS.parquet]
       python bench/steptime_errors.py print [STEPS.parquet]   (default ../shared/reference/aiconfigurator/...)

No figure of the files was fitted to these steps: they are predictions. Both rest on the same kernel timings, so this is
the error of putting kernels together and of the straight lines between them, not of the timings themselves.
"""

import re
import sys
from pathlib import Path

import numpy as np
import polars as pl

from replay.steptime.calibrations import DATA, LEFT_OUT, Calibration, read_calibration
from replay.steptime.experts import expert_curve
from replay.steptime.kernel_tables import ExpertTables
from replay.steptime.score import score_rows

DEFAULT = Path("../shared/reference/aiconfigurator/step_times.parquet")
EXPERTS = pl.col("moe_quant") != "-"
KINDS = {"dense": ~EXPERTS, "experts": EXPERTS}


def figures(error: pl.Series) -> tuple[float, float, int]:
    median, p95 = np.percentile(error.to_numpy(), (50, 95))
    return round(float(median), 4), round(float(p95), 4), len(error)


def left_out(calibration: Calibration) -> pl.Series:
    """|scaled / timed - 1| of each expert layer, with all layers of its size left out."""
    tables, found = calibration.tables.experts, []
    for key, timed in tables.us.items():
        size = (key.hidden, key.intermediate, key.top_k, key.experts)
        others = {k: us for k, us in tables.us.items() if (k.hidden, k.intermediate, k.top_k, k.experts) != size}
        memory = calibration.tables.elementwise.memory_bytes_per_s
        curve = expert_curve(ExpertTables(tables.tokens, others), key, memory)
        if curve is not None:
            found.extend((abs(curve.us / timed - 1)).tolist())
    return pl.Series(found, dtype=pl.Float64)


def write(scored: pl.DataFrame) -> None:
    for path in sorted(DATA.glob("*.json")):
        text = path.read_text()
        own = re.search(r'"id": "([^"]+)"', text)
        assert own
        rows = scored.filter(pl.col("calibration_id") == own[1])
        lines = []
        for kind, of_kind in KINDS.items():
            found = rows.filter(of_kind)
            if len(found):
                phases = {"all": found["error"], **{str(k[0]): v["error"] for k, v in sorted(found.group_by("phase"))}}
                row = ", ".join(f'"{phase}": {list(figures(error))}' for phase, error in phases.items())
                lines.append(f'"{kind}": {{{row}}}')
        error = left_out(read_calibration(path))
        if len(error):
            lines.append(f'"{LEFT_OUT}": {{"all": {list(figures(error))}}}')
        text = re.sub(r'"errors": \{\n.*?\n\},\n', "", text, flags=re.DOTALL)
        block = '"errors": {\n' + ",\n".join(lines) + "\n},\n"
        path.write_text(text.replace('"unit":', block + '"unit":', 1))


def show(scored: pl.DataFrame) -> None:
    print("| calibration | models | steps | prefill | decode | mixed | all |")
    print("|---|---|---|---|---|---|---|")
    for (name,), rows in scored.sort("calibration_id").group_by("calibration_id", maintain_order=True):
        for kind, of_kind in KINDS.items():
            found = rows.filter(of_kind)
            cells = []
            for phase in ("prefill", "decode", "mixed", None):
                error = (found if phase is None else found.filter(pl.col("phase") == phase))["error"]
                median, p95, _ = figures(error) if len(error) else (None, None, 0)
                cells.append("-" if median is None or p95 is None else f"{median:.1%} / {p95:.1%}".replace("%", " %"))
            if len(found):
                print(f"| `{name}` | {kind} | {len(found)} | {' | '.join(cells)} |")
    median, p95, count = figures(scored["error"])
    print(f"\nAll {count} steps: median {median:.1%}, p95 {p95:.1%}.")


def main() -> None:
    scored, _, _ = score_rows(Path(sys.argv[2]) if len(sys.argv) > 2 else DEFAULT)
    {"write": write, "print": show}[sys.argv[1]](scored)


if __name__ == "__main__":
    main()
