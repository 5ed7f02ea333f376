"""A naive twin of Orca: every iteration runs all requests; who comes in has all its KV slots set aside at once.

Written from the specification (engine semantics 1.6 and 5), for reading rather than for speed. The kernel must give the
same integers.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Request:
    arrival: int
    P: int
    N: int
    max_tokens: int
    admitted: int = -1
    first: int = -1
    last: int = -1
    gen: int = 0


@dataclass
class Orca:
    S: int
    B: int
    slots: int
    cost: tuple[int, int, int, int, int]
    max_model_len: int = 1 << 40
    steps: int = 0
    tokens: int = 0
    end: int = 0
    most_used: int = 0

    def reserved(self, r: Request) -> int:
        return min(r.P + r.max_tokens, self.max_model_len)

    def run(self, requests: list[Request]) -> None:
        now, queue, running = 0, list(requests), list[Request]()
        while queue or running:
            if not running and queue[0].arrival > now:
                now = queue[0].arrival
            budget = self.B - len(running)
            used = sum(self.reserved(r) for r in running)
            new = list[Request]()
            while queue and queue[0].arrival <= now and len(running) + len(new) < self.S:
                r = queue[0]
                if budget < r.P or used + self.reserved(r) > self.slots:
                    break
                new.append(queue.pop(0))
                budget -= r.P
                used += self.reserved(r)
                r.admitted = now
            now += self.duration(running, new)
            self.most_used = max(self.most_used, used)
            self.steps += 1
            self.tokens += len(running) + sum(r.P for r in new)
            self.end = now
            running += new
            for r in running:
                r.gen += 1
                r.last = now
                if r.first < 0:
                    r.first = now
            running = [r for r in running if r.gen < r.N and r.P + r.gen < self.max_model_len]

    def duration(self, running: list[Request], new: list[Request]) -> int:
        w, a, b, e2, o = self.cost
        contexts = [r.P + r.gen for r in running] + [1 for r in new if r.P == 1]
        pairs = sum(r.P * (r.P + 1) for r in new if r.P > 1)
        tokens = len(running) + sum(r.P for r in new)
        return max(w, a * tokens) + b * sum(contexts) + e2 * pairs + o
