"""docs/accuracy.md, written by the verb: the rules, every figure, good or bad, and what is behind them."""

from __future__ import annotations

from collections import Counter
from importlib.resources import files
from string import Template
from typing import Any

from replay.accuracy import wording
from replay.accuracy.largest_rate import FEWEST_RATES, VALUES_DIFFER
from replay.accuracy.regions import MEAN_NEEDS, P99_NEEDS, SHORTEST_TRIMMED_S, TRIM_S

LEFT_OUT = (
    ("H100-SXM", "10", "2.0 % (1.2, 1.3)", "4.7 % (3.0, 3.5)"),
    ("A100-SXM-80GB", "4", "0.5 % (1.4, 0.2)", "5.9 % (5.9, 5.3)"),
)
"""What ``bench/fit_overheads.py`` printed on 2026-11-30: GPU type, deployments, ITL and TTFT."""


def page(document: dict[str, Any]) -> str:
    """The whole page from an accuracy document."""
    template = Template(files("replay.accuracy").joinpath("page.md").read_text(encoding="utf-8"))
    calibrations = Counter((run["calibration_id"], run["step_times"]) for run in document["experiments"])
    left_out = wording.left_out_table(document)
    return template.substitute(
        medians=wording.markdown(wording.medians_table(document)),
        verdict="\n".join(filter(None, (wording.verdict_sentence(document), wording.throughput_sentence(document)))),
        calibrations="\n".join(f"- `{name}` ({kind}): {n} runs" for (name, kind), n in sorted(calibrations.items())),
        left_out="\n".join(f"| {' | '.join(row)} |" for row in LEFT_OUT),
        trim_s=f"{TRIM_S:.0f}",
        shortest_s=f"{SHORTEST_TRIMMED_S:.0f}",
        mean_needs=MEAN_NEEDS,
        p99_needs=P99_NEEDS,
        field=wording.markdown(wording.field_table(document)),
        largest_rates=wording.markdown(wording.largest_rates_table(document)),
        largest_rates_said=wording.largest_rates_sentence(document),
        fewest_rates=FEWEST_RATES,
        values_differ=f"{100 * (VALUES_DIFFER - 1):.0f}",
        worst=wording.markdown(wording.worst_table(document)),
        experiments=wording.markdown(wording.experiments_table(document)),
        not_replayed=wording.markdown(left_out) if left_out[1] else "All experiments were replayed.",
    )
