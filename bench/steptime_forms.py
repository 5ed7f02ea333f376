"""Which form of a step-time model carries over: dense models left out in turn, by model and by tensor parallelism.

Usage: python bench/steptime_forms.py [STEP_COMPONENTS.parquet]

Compared on ``rest_prefill``, everything but attention of a step of T tokens (vLLM, silicon): the data sheet's
roofline; the nearest known model scaled by its parameters; a regression at each T with five terms that are not negative
(layers, layers if sharded, layers * width * T, body parameters and head parameters a GPU), fitted on the other models
or the other tensor parallelisms; and single kernels put together, which are fitted to no step at all.
"""

import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import combinations
from pathlib import Path

import numpy as np
import polars as pl

from replay.hardware.catalogue import shipped_catalogue
from replay.steptime.calibrations import Calibration, calibration_by_name
from replay.steptime.components import KernelModel
from replay.steptime.roofline import Roofline

DEFAULT = Path("../shared/reference/aiconfigurator/step_components.parquet")
LARGEST_TOKENS = 16384
TERMS = 5
Array = np.ndarray


class Combination:
    """One model at one tensor parallelism, with its timed rest of a step."""

    def __init__(self, key: tuple[object, ...], rows: pl.DataFrame, calibration: Calibration) -> None:
        self.name, self.tp, self.fmt = str(key[1]), int(str(key[2])), str(key[3])
        catalogue = shipped_catalogue()
        self.model = catalogue.model(self.name)
        rows = rows.sort("tokens")
        self.tokens = rows["tokens"].to_numpy().astype(np.float64)
        self.ms = rows["ms"].to_numpy().astype(np.float64)
        self.roofline = Roofline(self.model, catalogue.gpu(calibration.gpu), self.tp, self.fmt, "bf16", 1)
        self.kernels = KernelModel(self.model, calibration.tables, self.tp, self.fmt, "bf16")

    @property
    def parameters(self) -> tuple[float, float]:
        """Of the body and of the head, on one GPU."""
        m = self.model
        mlp = 3 * m.hidden_size * m.intermediate_size / self.tp
        body = m.num_layers * (self.roofline.attention_params() + mlp)
        return body, m.hidden_size * m.vocab_size / self.tp

    def terms(self, tokens: float) -> list[float]:
        layers, width = self.model.num_layers, self.model.hidden_size * tokens
        sharded = 1.0 if self.tp > 1 else 0.0
        body, head = self.parameters
        return [layers, layers * sharded, layers * width * (1 + 2 * sharded), body, head]


def not_negative(rows: Array, wanted: Array) -> Array:
    """Least squares of relative errors with no term below 0: the best of all subsets of terms."""
    best, least = np.zeros(TERMS), np.inf
    a = rows / wanted[:, None]
    scale = np.abs(a).max(axis=0)
    scale[scale == 0] = 1.0
    for count in range(1, TERMS + 1):
        for chosen in map(list, combinations(range(TERMS), count)):
            found = np.linalg.lstsq(a[:, chosen] / scale[chosen], np.ones(len(wanted)), rcond=None)[0]
            if (found < 0).any():
                continue
            error = ((a[:, chosen] / scale[chosen]) @ found - 1) ** 2
            if error.sum() < least - 1e-12:
                best, least = np.zeros(TERMS), error.sum()
                best[chosen] = found / scale[chosen]
    return best


def regression(one: Combination, others: list[Combination]) -> Array:
    predicted = []
    for at, tokens in enumerate(one.tokens):
        rows = np.array([other.terms(tokens) for other in others])
        law = not_negative(rows, np.array([other.ms[at] for other in others]))
        predicted.append(float(law @ np.array(one.terms(tokens))))
    return np.array(predicted)


def nearest(one: Combination, others: list[Combination]) -> Array:
    size = sum(one.parameters)
    other = min(others, key=lambda found: max(size / sum(found.parameters), sum(found.parameters) / size))
    return other.ms * size / sum(other.parameters)


def read(path: Path) -> Iterator[tuple[str, str, list[Combination]]]:
    frame = pl.read_parquet(path).with_columns(pl.col(pl.Categorical).cast(pl.String))
    frame = frame.filter(
        (pl.col("part") == "rest_prefill")
        & (pl.col("source") == "silicon")
        & (pl.col("moe_tp") == 0)
        & (pl.col("tokens") <= LARGEST_TOKENS)
    ).unique(["gpu", "model", "tp", "weight_dtype", "tokens"])
    for (gpu, fmt), rows in sorted(frame.group_by("gpu", "weight_dtype")):
        calibration = calibration_by_name(str(gpu), "vllm")
        if calibration is None or calibration.gpu not in shipped_catalogue().gpus:
            continue
        keys = ["gpu", "model", "tp", "weight_dtype"]
        found = [Combination(key, part, calibration) for key, part in sorted(rows.group_by(keys))]
        lengths = {tuple(one.tokens) for one in found}
        if len(lengths) == 1 and len({one.name for one in found}) > 2:
            yield str(gpu), str(fmt), found


def main() -> None:
    forms: dict[str, Callable[[Combination, list[Combination]], Array]] = {
        "roofline": lambda one, others: one.roofline.rest_s(one.tokens) * 1e3,
        "nearest model": nearest,
        "five terms": regression,
        "kernels": lambda one, others: one.kernels.rest_s(one.tokens) * 1e3,
    }
    columns = [
        "roofline",
        "nearest model, model left out",
        "five terms, model left out",
        "five terms, tp left out",
        "kernels",
    ]
    print(f"| GPU | weights | combinations | {' | '.join(columns)} |")
    print("|---|---|---|" + "---|" * len(columns))
    pooled: dict[str, list[Array]] = defaultdict(list)
    for gpu, fmt, combinations_found in read(Path(sys.argv[1]) if len(sys.argv) > 1 else DEFAULT):
        errors: dict[str, list[Array]] = defaultdict(list)
        for one in combinations_found:
            without_model = [other for other in combinations_found if other.name != one.name]
            without_tp = [other for other in combinations_found if other.tp != one.tp]
            for column in columns:
                others = without_tp if column.endswith("tp left out") else without_model
                if others:
                    predicted = forms[column.split(",")[0]](one, others)
                    errors[column].append(np.abs(predicted / one.ms - 1))
        cells = []
        for column in columns:
            joined = np.concatenate(errors[column])
            pooled[column].append(joined)
            cells.append(figures(joined))
        print(f"| {gpu} | {fmt} | {len(combinations_found)} | {' | '.join(cells)} |")
    print(f"| all | | | {' | '.join(figures(np.concatenate(pooled[column])) for column in columns)} |")


def figures(errors: Array) -> str:
    median, p95 = np.percentile(errors, (50, 95)) * 100
    return f"{median:.1f} / {p95:.1f} %"


if __name__ == "__main__":
    main()
