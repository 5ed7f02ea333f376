"""Random small workloads to record an engine's scheduler on, and the file that recordings are kept in.

A case holds the scheduler's settings, a step law and the requests; recording adds what the engine did. Field names are
those of ``replay.verify``.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

Case = dict[str, Any]
Batch = list[tuple[int, int, int]]
"""A step: (request, tokens, tokens computed before)."""

MOST_STEPS = 5000
STREAM = 1_000_000
"""Token ids of one text: shared streams come first, then each request's own."""
STREAMS = 3


def draw(rng: random.Random, mode: str, **settings: Any) -> Case:
    """A case of ``mode``: the settings given, and the rest by chance, often with too little memory."""
    n = rng.randint(1, 24)
    longest, most = rng.choice([6, 40, 40]), rng.choice([3, 12, 40])
    prompts = [rng.randint(1, longest) for _ in range(n)]
    outputs = [rng.randint(1, most) for _ in range(n)]
    slots = rng.choice([1, 2, 3, 4, 8, 16])
    case: Case = {"mode": mode, "S": slots, "bs": rng.choice([1, 2, 4, 4, 16]), **settings}
    case.setdefault("B", slots + rng.choice([0, 2, 9, 30, 200]))
    pages = [-(-(p + o) // case["bs"]) for p, o in zip(prompts, outputs, strict=True)]
    case.setdefault("blocks", max(pages) + rng.choice([0, 0, 1, 3, 10, 60]))
    units = (0, 1, 1000, 10**6)
    case["cost"] = [rng.choice((0, 10**7)), *(rng.choice(units) for _ in range(3)), rng.choice((1, 10**6, 10**8))]
    span = rng.choice([1, 10**7, 10**9, 5 * 10**9])
    case["arrival"] = sorted(rng.randrange(span) for _ in range(n))
    case["P"], case["N"] = prompts, outputs
    if case.get("caching"):
        case["prefix"] = [[rng.randrange(STREAMS), rng.choice([0, p, rng.randint(0, p)])] for p in prompts]
    return case


def prompt_ids(case: Case, i: int) -> list[int]:
    """Token ids of request ``i``'s prompt."""
    stream, shared = case["prefix"][i] if case.get("caching") else (0, 0)
    return [(stream if k < shared else STREAMS + i) * STREAM + k for k in range(case["P"][i])]


def output_id(i: int, place: int) -> int:
    """The id of the ``place``-th output token of request ``i``, which no other request has."""
    return (STREAMS + i) * STREAM + STREAM // 2 + place


def duration(case: Case, batch: Iterable[tuple[int, int, int]]) -> int:
    """``max(w, a T) + b K + e A2 + o`` of a step: a chunk of one token adds what it reads to K, a longer one its pairs,
    twice, to A2."""
    w, a, b, e2, o = case["cost"]
    tokens, reads, pairs = 0, 0, 0
    for _, q, before in batch:
        tokens += q
        if q == 1:
            reads += before + 1
        else:
            pairs += q * (2 * before + q + 1)
    return int(max(w, a * tokens) + b * reads + e2 * pairs + o)


class Log:
    """What an engine did in a case."""

    def __init__(self, case: Case) -> None:
        n = len(case["P"])
        self.steps: list[Any] = []
        self.end = 0
        self.first, self.last = [-1] * n, [-1] * n
        self.preemptions = [0] * n
        self.scheduled = 0
        self.hits = 0

    def step(self, batch: Batch, free: int) -> None:
        """A step that is about to run, with the blocks that are free beside it."""
        self.steps.append([free, sorted([i, q] for i, q, _ in batch)])
        self.scheduled += sum(q for _, q, _ in batch)

    def token(self, i: int, now: int) -> None:
        """A token of request ``i`` comes out."""
        if self.first[i] < 0:
            self.first[i] = now
        self.last[i] = now

    def answer(self) -> Case:
        """The recording; ``log`` is the digest of all steps."""
        return {
            "steps": len(self.steps),
            "end": self.end,
            "first": self.first,
            "last": self.last,
            "preemptions": self.preemptions,
            "scheduled": self.scheduled,
            "hits": self.hits,
            "log": digest(self.steps),
        }


def digest(steps: list[Any]) -> str:
    """Sixteen hexadecimal digits that stand for steps ``[free blocks, [[request, tokens], ...]]``."""
    return hashlib.sha256(json.dumps(steps).encode()).hexdigest()[:16]


def write(path: Path, about: dict[str, str], cases: Iterable[Case], play: Callable[[Case], Log]) -> None:
    """Records every case and keeps the file, one case a line."""
    recorded = [{**case, **play(case).answer()} for case in cases]
    lines = ",\n".join(json.dumps(case, separators=(",", ":")) for case in recorded)
    head = json.dumps(about, indent=1)[:-2]
    path.write_text(f'{head},\n "cases": [\n{lines}\n]\n}}\n')
    print(f"{path.name}: {len(recorded)} cases, {sum(c['steps'] for c in recorded)} steps, ", end="")
    print(f"{sum(sum(c['preemptions']) for c in recorded)} preemptions, {sum(c['hits'] for c in recorded)} hit tokens")
