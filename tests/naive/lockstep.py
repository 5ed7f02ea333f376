"""A naive twin of data-parallel ranks in lockstep, written from engine semantics 1.1, for reading rather than for
speed."""

from __future__ import annotations

from naive.routers import Cluster
from naive.vllm import Config, Request, ceil_div

Batch = list[tuple[Request, int, int]]


class Group(Cluster):
    """Ranks that step together; ``self.replicas`` are the ranks."""

    def __init__(
        self,
        config: Config,
        requests: list[Request],
        ranks: int,
        router: str,
        graph_tokens: int,
        shared: int,
        idle_check_steps: int,
    ) -> None:
        super().__init__(config, requests, ranks, router)
        self.graph_tokens, self.shared = graph_tokens, shared
        """Most tokens that are padded; of the time per token, what all ranks compute together."""
        self.idle_check_steps = idle_check_steps
        self.waves: list[tuple[list[Batch], int]] = []
        self.dummies = 0

    def has_work(self) -> bool:
        return any(rank.waiting or rank.running for rank in self.replicas)

    def duration(self, batches: list[Batch]) -> int:
        w, a, b, e2, o = self.replicas[0].c.cost
        own = [max(1, sum(q for _, q, _ in batch)) for batch in batches]
        longest = 0
        for batch, tokens in zip(batches, own, strict=True):
            most, shift = max(own), 0
            if most > self.graph_tokens:
                most, shift = tokens, self.shared * (ceil_div(sum(own), len(own)) - tokens)
            context = sum(comp + 1 for _, q, comp in batch if q == 1)
            pairs = sum(q * (2 * comp + q + 1) for _, q, comp in batch if q > 1)
            longest = max(longest, max(w, a * most) + b * context + e2 * pairs + o + shift)
        return longest

    def start_waves(self, now: int) -> None:
        depth = 2 if self.replicas[0].c.async_ else 1
        while not self.waves or (len(self.waves) < depth and self.has_work()):
            batches = []
            for rank in self.replicas:
                batch = rank.schedule(now)
                rank.count(batch)
                self.dummies += not batch
                batches.append(batch)
            self.waves.append((batches, now))

    def run(self) -> None:
        pending = sorted(self.requests, key=lambda r: (r.arrival, r.index))
        awake, end, previous_end, count = False, 0, 0, 0
        while pending or awake:
            now = min([end] * awake + [pending[0].arrival for _ in range(bool(pending))])
            ended = awake and end == now
            if ended:
                for rank, batch in zip(self.replicas, self.waves.pop(0)[0], strict=True):
                    rank.process(batch, now)
                previous_end = now
                count += 1
                if count % self.idle_check_steps == 0 and not self.has_work():
                    awake, count, self.waves = False, 0, []
            while pending and pending[0].arrival <= now:
                r = pending.pop(0)
                k = self.choose(r, now)
                self.chosen.append(k)
                self.next = (k + 1) % len(self.replicas)
                self.replicas[k].receive(r)
                self.replicas[k].rank(r)
            if awake and not ended:
                continue
            if awake or self.has_work():
                awake = True
                self.start_waves(now)
                batches, at = self.waves[0]
                end = max(previous_end, at) + self.duration(batches)
