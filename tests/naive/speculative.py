"""How many drafts are accepted, in plain Python: what the twin of the scheduler asks."""

from __future__ import annotations

from collections import defaultdict

from naive.vllm import Request

ONE = 1 << 30


def scrambled(x: int) -> int:
    x ^= x >> 16
    x = x * 0x7FEB352D % 2**32
    x ^= x >> 15
    x = x * 0x31848BAB % 2**32
    return x ^ (x >> 14)


class Sampled:
    """Each output token of each request has its own draw."""

    def __init__(self, seed: int, acceptance: tuple[int, ...]) -> None:
        self.seed = seed
        self.acceptance = acceptance

    def __call__(self, r: Request, drafts: int) -> int:
        for j in range(drafts):
            number = scrambled(scrambled(scrambled(self.seed) ^ r.index) ^ (r.gen + j)) % ONE
            if number >= self.acceptance[j]:
                return j
        return drafts


class Expected:
    """The expected number adds up; whole tokens of it are accepted. It starts at a half with each admission."""

    def __init__(self, acceptance: tuple[int, ...]) -> None:
        self.acceptance = acceptance
        self.owed: dict[tuple[int, int], int] = defaultdict(lambda: ONE // 2)

    def __call__(self, r: Request, drafts: int) -> int:
        admission = (r.index, r.preemptions)
        share = ONE
        for j in range(drafts):
            share = share * self.acceptance[j] // ONE
            self.owed[admission] += share
        accepted = self.owed[admission] // ONE
        self.owed[admission] -= accepted * ONE
        return accepted
