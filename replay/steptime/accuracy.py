"""What is known of the error of step times: only where they were compared with kernel tables."""

from __future__ import annotations

import re
from dataclasses import dataclass

from replay.hardware.entries import GpuType, ModelSpec
from replay.steptime.calibrations import LEFT_OUT, Calibration
from replay.steptime.components import KernelModel
from replay.steptime.record import StepTime
from replay.steptime.roofline import FROM_BENCHMARKS, borrowed, generation

COMPARED = {
    "ampere": "A100",
    "ada": "L40S",
    "hopper": "H100 and H200",
    "blackwell": "B200, B300, GB200 and GB300",
    "blackwell-workstation": "RTX PRO 6000",
}
"""GPU types of each generation whose kernel tables the roofline was compared with."""

STATED_ERROR = {
    ("ampere", "dense", "bf16"): ("6 %", "17 %"),
    ("ampere", "experts", "bf16"): ("11 %", "24 %"),
    ("hopper", "dense", "bf16"): ("3 %", "14 to 15 %"),
    ("hopper", "dense", "fp8"): ("7 to 11 %", "28 to 34 %"),
    ("hopper", "experts", "bf16"): ("12 to 14 %", "33 to 35 %"),
    ("hopper", "experts", "fp8"): ("24 to 29 %", "46 to 50 %"),
    ("hopper", "experts", "mxfp4"): ("12 to 19 %", "31 to 42 %"),
    ("ada", "dense", "bf16"): ("3 %", "11 %"),
    ("ada", "dense", "fp8"): ("5 %", "12 %"),
    ("ada", "experts", "bf16"): ("5 %", "32 %"),
    ("ada", "experts", "fp8"): ("19 %", "69 %"),
    ("ada", "experts", "mxfp4"): ("3 %", "23 %"),
    ("blackwell", "dense", "bf16"): ("4 to 8 %", "24 to 32 %"),
    ("blackwell", "dense", "fp8"): ("8 to 10 %", "31 to 33 %"),
    ("blackwell", "dense", "nvfp4"): ("8 to 12 %", "31 to 36 %"),
    ("blackwell", "experts", "bf16"): ("11 to 16 %", "45 to 56 %"),
    ("blackwell", "experts", "fp8"): ("47 to 65 %", "77 to 87 %"),
    ("blackwell", "experts", "mxfp4"): ("14 to 19 %", "41 to 44 %"),
    ("blackwell", "experts", "nvfp4"): ("11 to 18 %", "47 to 51 %"),
    ("blackwell-workstation", "dense", "bf16"): ("5 %", "18 %"),
    ("blackwell-workstation", "dense", "fp8"): ("6 %", "24 %"),
    ("blackwell-workstation", "dense", "nvfp4"): ("11 %", "36 %"),
    ("blackwell-workstation", "experts", "bf16"): ("9 %", "30 %"),
    ("blackwell-workstation", "experts", "mxfp4"): ("11 %", "34 %"),
    ("blackwell-workstation", "experts", "nvfp4"): ("10 %", "30 %"),
}
"""Median and 95th percentile of |analytic / kernel tables - 1| of a step, by generation, kind of model and weight
format (``fp8`` stands for both of its formats), ranging over the GPU types compared (docs/step-time.md)."""


BENCHMARKED: dict[tuple[str, str], tuple[int, str, str]] = {
    ("A100-PCIe-80GB/trtllm/analytic", "dense"): (21, "13 %", "28 %"),
    ("A100-SXM-40GB/trtllm/analytic", "dense"): (152, "15 %", "37 %"),
    ("A100-SXM-40GB/vllm/analytic", "dense"): (152, "7 %", "17 %"),
    ("A100-SXM-80GB/trtllm", "dense"): (60, "8 %", "34 %"),
    ("A100-SXM-80GB/trtllm", "experts"): (38, "5 %", "11 %"),
    ("B200-SXM/sglang/analytic", "experts"): (104, "5 %", "14 %"),
    ("B200-SXM/trtllm", "experts"): (114, "5 %", "27 %"),
    ("B300-SXM/sglang/analytic", "experts"): (31, "9 %", "62 %"),
    ("GB200/trtllm", "experts"): (23, "34 %", "81 %"),
    ("GH200-96GB/trtllm/analytic", "dense"): (58, "9 %", "21 %"),
    ("GH200-96GB/vllm/analytic", "dense"): (56, "7 %", "11 %"),
    ("H100-SXM/trtllm", "dense"): (256, "21 %", "58 %"),
    ("H100-SXM/trtllm", "experts"): (74, "12 %", "48 %"),
    ("H100-SXM/vllm", "dense"): (269, "9 %", "25 %"),
    ("H200-SXM/sglang/analytic", "experts"): (115, "5 %", "19 %"),
    ("H200-SXM/trtllm", "dense"): (103, "6 %", "15 %"),
    ("H200-SXM/trtllm", "experts"): (97, "8 %", "34 %"),
    ("H200-SXM/vllm", "experts"): (56, "9 %", "17 %"),
    ("H200-SXM/vllm", "linear"): (30, "557 %", "714 %"),
    ("H200-SXM/vllm/analytic", "experts"): (34, "114 %", "136 %"),
    ("L40S/trtllm", "dense"): (49, "7 %", "28 %"),
    ("L40S/trtllm", "experts"): (20, "14 %", "23 %"),
    ("MI250/vllm/analytic", "dense"): (214, "7 %", "22 %"),
    ("MI250/vllm/analytic", "experts"): (41, "5 %", "11 %"),
    ("MI300X/sglang/analytic", "experts"): (69, "14 %", "24 %"),
    ("MI300X/vllm/analytic", "dense"): (429, "59 %", "297 %"),
    ("MI300X/vllm/analytic", "experts"): (78, "11 %", "57 %"),
    ("MI325X/sglang/analytic", "experts"): (66, "12 %", "23 %"),
    ("MI355X/sglang/analytic", "experts"): (140, "15 %", "97 %"),
    ("RTX-PRO-6000-Blackwell-SE/trtllm", "experts"): (29, "13 %", "53 %"),
    ("ampere", "dense"): (325, "9 %", "34 %"),
    ("ampere", "experts"): (35, "16 %", "46 %"),
    ("blackwell", "experts"): (135, "6 %", "24 %"),
    ("cdna2", "dense"): (214, "7 %", "22 %"),
    ("cdna2", "experts"): (41, "5 %", "11 %"),
    ("cdna3", "dense"): (429, "59 %", "297 %"),
    ("cdna3", "experts"): (213, "13 %", "31 %"),
    ("cdna4", "experts"): (140, "15 %", "97 %"),
    ("hopper", "dense"): (114, "7 %", "20 %"),
    ("hopper", "experts"): (155, "9 %", "119 %"),
}
"""Published benchmarks replayed (``capreplay score-benchmarks``, docs/benchmarks.md), by one of ``benchmark_subjects``
and kind of model: how many, the median error of their throughput, and within what nine in ten are. Groups of
``FEWEST_ROWS`` rows or more."""
FEWEST_ROWS = 20
_KIND_NAMES = {"dense": "dense", "experts": "expert", "linear": "linear-attention"}
"""Kinds of model that errors are told apart by, as adjectives."""


def model_kinds(model: ModelSpec) -> tuple[str, ...]:
    """The kinds of a model, the narrowest first."""
    broad = "experts" if model.num_moe_layers else "dense"
    return ("linear", broad) if model.num_linear_layers else (broad,)


def benchmark_subjects(gpu: GpuType, family: str, provenance: str) -> tuple[str, ...]:
    """What a benchmark's error is an error of, the narrowest first: the timed kernels of a GPU type under an engine
    family; or the data sheet of a GPU type under one, and the row of its generation."""
    if provenance != "analytic":
        return (f"{gpu.key}/{family}",)
    return f"{gpu.key}/{family}/analytic", generation(gpu)


@dataclass(frozen=True)
class _Published:
    """What published benchmarks say of an error."""

    rows: int
    median: str
    most: str
    kind: str
    subject: str

    def within(self, where: str, *, median: bool = False) -> str:
        """The clause that ``quoted_error`` reads; ``where`` stands for the broadest subject."""
        gpu, _, rest = self.subject.partition("/")
        where = f"on {gpu} under {rest.removesuffix('/analytic')}" if rest.endswith("/analytic") else where
        middle = f"median {self.median}, " if median else ""
        name = _KIND_NAMES[self.kind]
        return f"throughput of {self.rows} published benchmarks of {name} models {where}: {middle}{WITHIN} {self.most}"


def _published(model: ModelSpec, gpu: GpuType, family: str, provenance: str) -> _Published | None:
    """Of all groups that the deployment is in the one that is furthest off: few models stand behind a narrow group, and
    a broad one may hide that an engine is worse."""
    found = [
        _Published(*BENCHMARKED[subject, kind], kind, subject)
        for subject in benchmark_subjects(gpu, family, provenance)
        for kind in model_kinds(model)
        if (subject, kind) in BENCHMARKED
    ]
    return max(found, key=lambda one: int(one.most.split()[0]), default=None)


def error_sentence(record: StepTime, model: ModelSpec, gpu: GpuType, weights: str, family: str = "vllm") -> str:
    """How far step times are off under an engine family, in words. ``weights`` is a canonical weight format."""
    if record.provenance == "analytic":
        return stated_error(model, gpu, weights, family)
    return record.stated_error or "not measured"


def stated_error(model: ModelSpec, gpu: GpuType, weights: str, family: str = "vllm") -> str:
    """The sentence for analytic step times."""
    kind = generation(gpu)
    if kind == "other":
        return "not measured"
    if borrowed(gpu):
        return f"not measured on this GPU generation; efficiencies borrowed from {kind} ({COMPARED[kind]})"
    sort = "experts" if model.num_moe_layers else "dense"
    fmt = "fp8" if weights == "fp8_block" else weights
    name = _KIND_NAMES[sort]
    served = _published(model, gpu, family, "analytic")
    if kind in FROM_BENCHMARKS:
        if served is None:
            return f"not measured for {name} models on this GPU generation ({kind})"
        return served.within(f"on {kind}", median=True)
    if (kind, sort, fmt) not in STATED_ERROR:
        return f"not measured for {name} models with {weights} weights on this GPU generation ({kind})"
    median, p95 = STATED_ERROR[kind, sort, fmt]
    steps = f"step time of {name} models with {weights} weights against kernel tables of {COMPARED[kind]}: "
    end = "latency end to end not measured" if served is None else served.within("of this generation")
    return f"{steps}median {median}, p95 {p95}; {end}"


WITHIN = "nine in ten within"
FEWEST_STEPS = 100
"""Of fewer timings no error is quoted."""

MEASURED_RUNS = {
    ("L40S", "dense"): (1, "3.1 %"),
    ("H100-SXM", "dense"): (69, "6.8 %"),
    ("H100-SXM", "experts"): (11, "9.8 %"),
    ("A100-SXM-80GB", "dense"): (16, "4.5 %"),
}
"""Measured runs of vLLM by GPU type and kind of model (``capreplay accuracy``, docs/accuracy.md): how many, and within
what their mean ITL is predicted: the 95th percentile of its error over 20 runs or more, the worst of fewer."""


def calibrated_error(calibration: Calibration, kernels: KernelModel, gpu: GpuType, family: str = "vllm") -> str:
    """The same sentence for step times put together from timed kernels, of a deployment under an engine family."""
    experts = kernels.experts() if kernels.model.num_moe_layers else None
    kind, what = "dense", f"step time of dense models, put together from kernels timed on {gpu.key}"
    if experts is not None:
        kind, what = "experts", f"step time of expert models, put together from kernels timed on {gpu.key}"
        if not experts.timed:
            kind, what = LEFT_OUT, f"expert kernels of {gpu.key} scaled from other sizes, each size left out in turn"
    found = calibration.errors.get(kind, {}).get("all")
    if found is None or found.steps < FEWEST_STEPS:
        return f"not measured for {kind} models on {gpu.key}"
    figures = f"median {found.median:.1%}, p95 {found.p95:.1%} of {found.steps} timings"
    prefill, decode = (calibration.errors[kind].get(phase) for phase in ("prefill", "decode"))
    if prefill is not None and decode is not None and min(prefill.steps, decode.steps) >= FEWEST_STEPS:
        figures += f" (prefill p95 {prefill.p95:.1%}, decode p95 {decode.p95:.1%})"
    return f"{what}: {figures.replace('%', ' %')}; {_of_runs(kernels.model, gpu, family)}"


def _of_runs(model: ModelSpec, gpu: GpuType, family: str) -> str:
    """What measured runs and published benchmarks of the whole engine say; both where there are both."""
    kind = "experts" if model.num_moe_layers else "dense"
    said = []
    found = MEASURED_RUNS.get((gpu.key, kind)) if family == "vllm" else None
    if found is not None:
        runs = "1 measured run" if found[0] == 1 else f"{found[0]} measured runs"
        said.append(f"mean ITL of {runs} within {found[1]}")
    served = _published(model, gpu, family, "transported")
    if served is not None:
        said.append(served.within("under this engine"))
    return "; ".join(said) or "latency end to end not measured"


@dataclass(frozen=True)
class QuotedError:
    """Shares by which steps with prompt tokens and steps of decodes alone may be off."""

    prefill: float
    decode: float

    @property
    def largest(self) -> float:
        """Of both."""
        return max(self.prefill, self.decode)


def quoted_error(sentence: str) -> QuotedError | None:
    """The error that an ``error_sentence`` quotes: the p95 of single steps (of ``p95 14 to 15 %`` the latter), of each
    phase where both are stated (of requests TTFT for prefill, ITL for decode); or that of measured runs or published
    benchmarks where it is larger. ``None``: it quotes none."""
    steps = re.findall(r", p95 (?:[\d.]+ to )?([\d.]+) %", sentence)
    served = re.findall(rf"(?:measured runs? within |{WITHIN} )([\d.]+) %", sentence)
    phases = re.search(r"\((?:prefill|TTFT) p95 ([\d.]+) %, (?:decode|ITL) p95 ([\d.]+) %\)", sentence)
    if not steps and not served:
        return None
    kinds = [[phase] for phase in phases.groups()] if phases else [steps, steps]
    return QuotedError(*(round(max(map(float, [*kind, *served])) / 100, 6) for kind in kinds))
