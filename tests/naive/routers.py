"""A naive twin of replicas behind a router: every event in time order, every figure counted anew.

Written from the specification (engine semantics 1.1 and 6, "Routing"), for reading rather than for speed.
"""

from __future__ import annotations

from fractions import Fraction

from naive.vllm import Config, Engine, Request


class Replica(Engine):
    """An engine that is told when to start batches and when its oldest one ends."""

    def __init__(self, config: Config) -> None:
        super().__init__(config, [])
        self.flight: list[tuple[list[tuple[Request, int, int]], int]] = []
        self.previous_end = 0
        self.sent: list[Request] = []

    @property
    def due(self) -> int | None:
        """End of the oldest batch."""
        if not self.flight:
            return None
        batch, at = self.flight[0]
        return max(self.previous_end, at) + self.duration(batch)

    def receive(self, r: Request) -> None:
        r.state = "waiting"
        self.waiting.append(r)
        self.sent.append(r)

    def start(self, now: int) -> None:
        while self.waiting or self.running:
            while len(self.flight) < (2 if self.c.async_ else 1):
                batch = self.schedule(now)
                self.count(batch)
                self.flight.append((batch, now))
            if self.flight[0][0]:
                return
            self.flight.pop(0)
        self.flight = []

    def finish(self) -> None:
        end = self.due
        batch, _ = self.flight.pop(0)
        assert end is not None
        self.previous_end = end
        self.process(batch, end)

    def look(self) -> dict[str, int]:
        """What a router may see."""
        unfinished = [r for r in self.sent if r.state != "finished"]
        assert len(unfinished) == len(self.waiting) + len(self.running)
        return {
            "requests": len(unfinished),
            "tokens": sum(r.P + r.N for r in unfinished),
            "waiting": len(self.waiting),
            "running": len(self.running),
            "used": self.c.blocks - len(self.pool.free),
        }


class Cluster:
    """``replicas`` engines behind ``router``; ``pairs`` are the draws of power of two, ``age`` that of snapshots."""

    def __init__(
        self,
        config: Config,
        requests: list[Request],
        replicas: int,
        router: str,
        age: int = 0,
        pairs: list[tuple[int, int]] | None = None,
        blocks: list[list[int]] | None = None,
        block_tokens: int = 1,
    ) -> None:
        self.replicas = [Replica(config) for _ in range(replicas)]
        self.requests, self.router, self.age = requests, router, age
        self.pairs, self.blocks, self.block_tokens = pairs, blocks, block_tokens
        self.next = 0
        self.chosen: list[int] = []
        self.log: list[tuple[int, list[dict[str, int]]]] = [(-1, self.look())]
        self.sent_since: list[tuple[int, int]] = []
        self.known: list[set[int]] = [set() for _ in range(replicas)]

    def look(self) -> list[dict[str, int]]:
        return [replica.look() for replica in self.replicas]

    def seen(self, now: int) -> tuple[int, list[dict[str, int]]]:
        """When the router last looked, and what it saw: ends of batches of that instant, no starts."""
        if self.age == 0:
            return now, self.look()
        tick = now // self.age * self.age
        at_tick = [view for time, view in self.log if time == tick]
        return tick, at_tick[0] if at_tick else [view for time, view in self.log if time < tick][-1]

    def score(self, k: int, now: int) -> Fraction:
        tick, views = self.seen(now)
        view = dict(views[k])
        if self.age > 0:
            view["waiting"] += len([1 for time, replica in self.sent_since if time >= tick and replica == k])
        blocks = self.replicas[k].c.blocks
        if self.router == "vllm_dp":
            own = self.replicas[k].look()["requests"]
            usage = Fraction(view["used"], blocks)
            return max(own, view["waiting"] + view["running"]) + view["waiting"] * 6 * max(0, usage - Fraction(1, 2))
        if self.router == "vllm_dp_old":
            return Fraction(4 * view["waiting"] + view["running"])
        column = {"least_outstanding_tokens": "tokens", "least_kv_usage": "used"}.get(self.router, "requests")
        return Fraction(views[k][column])

    def match(self, k: int, r: Request) -> int:
        """Leading prompt tokens that replica ``k`` was sent before."""
        assert self.blocks is not None
        known = 0
        for block in self.blocks[r.index]:
            if block not in self.known[k]:
                break
            known += 1
        return min(known * self.block_tokens, r.P)

    def choose(self, r: Request, now: int) -> int:
        n = len(self.replicas)
        in_turn = [(self.next + i) % n for i in range(n)]
        if self.router == "round_robin":
            return in_turn[0]
        scores = [self.score(k, now) for k in range(n)]
        if self.router == "power_of_two":
            assert self.pairs is not None
            one, other = self.pairs[r.index]
            return other if scores[other] < scores[one] else one
        if self.router == "prefix_aware":
            matches = [self.match(k, r) for k in range(n)]
            even = max(scores) - min(scores) <= 64 or max(scores) <= Fraction(3, 2) * min(scores)
            if even and Fraction(max(matches), r.P) >= Fraction(3, 10):
                in_turn = [k for k in in_turn if matches[k] == max(matches)]
        return min(in_turn, key=lambda k: scores[k])

    def run(self) -> None:
        pending = sorted(self.requests, key=lambda r: (r.arrival, r.index))
        while True:
            times = [replica.due for replica in self.replicas if replica.due is not None]
            times += [pending[0].arrival] if pending else []
            if not times:
                return
            now = min(times)
            ready = [replica for replica in self.replicas if replica.due == now]
            for replica in ready:
                replica.finish()
            self.log.append((now, self.look()))
            while pending and pending[0].arrival <= now:
                r = pending.pop(0)
                k = self.choose(r, now)
                self.chosen.append(k)
                self.next = (k + 1) % len(self.replicas)
                self.sent_since.append((now, k))
                if self.blocks is not None:
                    self.known[k].update(self.blocks[r.index])
                if self.replicas[k].due is None and self.replicas[k] not in ready:
                    ready.append(self.replicas[k])
                self.replicas[k].receive(r)
            for replica in ready:
                replica.start(now)
            self.log.append((now, self.look()))
