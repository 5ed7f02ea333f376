"""Makes ``chat-hour.csv.gz``: a synthetic hour of chat traffic. The same seed gives the same bytes.

Nothing in it was recorded. The shape is that of a production chat service in the rising part of a day: a rate that
climbs and falls over the hour, minutes-long surges, short bursts, lognormal prompt lengths from two kinds of use (short
questions, long pasted documents) and lognormal answers. Run: ``python examples/make_sample_trace.py [OUT]``.
"""

from __future__ import annotations

import gzip
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt

SEED = 20_260_301
HOUR_S = 3_600
BASE_RPS = 5.2
SURGES = ((940.0, 75.0, 0.9), (2_310.0, 120.0, 0.6), (3_020.0, 40.0, 1.4))
"""Centre (s), width (s) and height (share of the base rate)."""
BURST_PROBABILITY = 0.012
BURST_MEAN_REQUESTS = 9.0
MAX_PROMPT_TOKENS = 12_000
MAX_OUTPUT_TOKENS = 2_000

FloatArray = npt.NDArray[np.float64]


def rate_rps(second: FloatArray) -> FloatArray:
    """Expected requests per second at each second of the hour: one smooth swell plus surges."""
    swell = 1.0 + 0.35 * np.sin(2 * np.pi * (second / HOUR_S - 0.2))
    for centre, width, height in SURGES:
        swell = swell + height * np.exp(-0.5 * ((second - centre) / width) ** 2)
    return np.asarray(BASE_RPS * swell, dtype=np.float64)


def arrivals_ms(rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """Sorted arrival times: Poisson counts each second at a slowly wandering rate, and bursts within half a second."""
    second = np.arange(HOUR_S, dtype=np.float64)
    wander = np.exp(0.18 * np.convolve(rng.standard_normal(HOUR_S + 59), np.full(60, 60**-0.5), mode="valid"))
    counts = rng.poisson(rate_rps(second) * wander / np.exp(0.18**2 / 2))
    smooth = np.repeat(second, counts) + rng.random(int(counts.sum()))
    starts = second[rng.random(HOUR_S) < BURST_PROBABILITY]
    sizes = rng.geometric(1 / BURST_MEAN_REQUESTS, len(starts))
    bursts = np.repeat(starts + rng.random(len(starts)) * 0.5, sizes) + rng.random(int(sizes.sum())) * 0.5
    times = np.floor(np.concatenate([smooth, bursts]) * 1_000).astype(np.int64)
    return np.sort(times)


def lengths(rng: np.random.Generator, n: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Prompt and output tokens: 85 % short questions, 15 % long documents; answers a little longer for questions."""
    document = rng.random(n) < 0.15
    prompt = np.where(document, rng.lognormal(7.9, 0.55, n), rng.lognormal(5.6, 0.95, n))
    output = np.where(document, rng.lognormal(5.0, 0.7, n), rng.lognormal(5.2, 0.75, n))
    return (
        np.clip(np.rint(prompt), 8, MAX_PROMPT_TOKENS).astype(np.int64),
        np.clip(np.rint(output), 2, MAX_OUTPUT_TOKENS).astype(np.int64),
    )


def sample_csv(seed: int = SEED) -> bytes:
    """The table as CSV in the format ``capreplay-csv``."""
    rng = np.random.Generator(np.random.PCG64(seed))
    times = arrivals_ms(rng)
    prompt, output = lengths(rng, len(times))
    rows = [f"{t // 1000}.{t % 1000:03d},{p},{o}" for t, p, o in zip(times, prompt, output, strict=True)]
    return ("\n".join(["arrival_s,prompt_tokens,output_tokens", *rows]) + "\n").encode()


def write(out: Path) -> None:
    """Writes the gzip file; no name and no time in its header, so that the bytes depend on the seed alone."""
    out.write_bytes(gzip.compress(sample_csv(), compresslevel=9, mtime=0))


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("chat-hour.csv.gz"))
