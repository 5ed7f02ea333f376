"""A naive twin of prefill and decode pools: objects and lists, every event in time order.

Written from the specification (engine semantics 5, "Disaggregated P/D") and docs/disaggregation.md, for reading rather
than for speed. The kernel must give the same integers.
"""

from __future__ import annotations

from dataclasses import dataclass

from naive.routers import Cluster, Replica
from naive.vllm import Block, Config, Request, ceil_div

Batch = list[tuple[Request, int, int]]


class Pooled(Replica):
    """A replica that may have to wait for something other than an arrival."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.preempted = 0

    def preempt(self, r: Request) -> None:
        super().preempt(r)
        self.preempted += 1

    def has_requests(self) -> bool:
        return bool(self.waiting or self.running)

    def start(self, now: int) -> None:
        while self.has_requests():
            before = self.preempted
            while len(self.flight) < (2 if self.c.async_ else 1):
                batch = self.schedule(now)
                self.count(batch)
                self.flight.append((batch, now))
            if self.flight[0][0]:
                return
            under_way = any(batch for batch, _ in self.flight)
            self.flight.pop(0)
            if not under_way and self.preempted == before:
                break
        self.flight = []


class Prefill(Pooled):
    """Gives every request one token; what goes on to the decode pool keeps its blocks."""

    def __init__(self, config: Config, ends_here: set[int]) -> None:
        super().__init__(config)
        self.ends_here = ends_here
        self.kept: dict[int, list[Block]] = {}

    def free(self, r: Request) -> None:
        if r.gen == r.N and r.index not in self.ends_here:
            self.kept[r.index] = r.blocks
            r.blocks = []
            r.cached_blocks = 0
        else:
            super().free(r)

    def finish_and_tell(self) -> list[Request]:
        """The requests that this batch's end sends on, in its order."""
        batch = self.flight[0][0]
        self.finish()
        return [r for r, _, _ in batch if r.state == "finished" and r.index not in self.ends_here]


@dataclass(eq=False)
class Item:
    """A request on its way into a decode replica's batches."""

    r: Request
    sender: int
    kv: int | None = None
    ended: bool = False


class Decode(Pooled):
    """Takes requests with their KV; what it preempts it computes again."""

    def __init__(self, config: Config, block_time: int, latency: int, send_free: list[int]) -> None:
        super().__init__(config)
        self.block_time, self.latency, self.send_free = block_time, latency, send_free
        self.receive_free = 0
        self.line: list[Item] = []
        self.sent_items: list[Item] = []

    def has_requests(self) -> bool:
        return bool(self.waiting or self.running or self.line)

    def look(self) -> dict[str, int]:
        unfinished = [r for r in self.sent if r.state != "finished"]
        assert len(unfinished) == len(self.waiting) + len(self.running) + len(self.line)
        return {
            "requests": len(unfinished),
            "tokens": sum(r.P + r.N for r in unfinished),
            "waiting": len(unfinished) - len(self.running),
            "running": len(self.running),
            "used": self.c.blocks - len(self.pool.free),
        }

    def schedule(self, now: int) -> Batch:
        c = self.c
        budget = c.B
        batch: Batch = []
        crowd = len(self.running) + len(self.waiting) + len(self.line)
        thr = c.thr if c.thr_binds_lone_request or crowd > 1 else 0
        before = self.preempted
        for r in list(self.running):
            if budget == 0 or r not in self.running:
                break
            if r.placeholders > 0 and r.comp + 2 - r.placeholders >= r.P + r.N:
                continue
            q = r.num_tokens + r.placeholders - r.comp
            q = min(thr, q) if thr > 0 else q
            q = min(q, budget)
            while r in self.running and not self.grow(r, r.comp + q):
                victim = self.running.pop()
                self.preempt(victim)
            if r not in self.running:
                break
            batch.append((r, q, r.comp))
            budget -= q
        if self.preempted == before:
            while budget > 0 and len(self.running) < c.S and self.line:
                item = self.line[0]
                if item.kv is None or item.kv > now:
                    break
                self.line.pop(0)
                r = item.r
                r.comp = r.num_tokens - 1
                r.state = "running"
                r.admitted = now
                self.running.append(r)
                batch.append((r, 1, r.comp))
                budget -= 1
            while budget > 0 and len(self.running) < c.S and self.waiting:
                r = self.waiting[0]
                q = min(thr, r.num_tokens) if thr > 0 else r.num_tokens
                if not c.chunked and q > budget:
                    break
                q = min(q, budget)
                room = len(self.pool.free) - (int(c.watermark * (c.blocks + 1)) if self.running else 0)
                if ceil_div(r.num_tokens if c.full_isl else q, c.bs) > room:
                    break
                self.waiting.pop(0)
                self.running.append(r)
                r.state = "running"
                r.comp = 0
                if r.admitted < 0:
                    r.admitted = now
                assert self.grow(r, q)
                batch.append((r, q, 0))
                budget -= q
            if budget > 0 and len(self.running) < c.S and not self.waiting:
                self.ask(now)
        for r, q, _ in batch:
            r.comp += q
            if r.comp == r.num_tokens + r.placeholders:
                r.placeholders += 1
        return batch

    def ask(self, now: int) -> None:
        """Blocks first, then the transfer."""
        for item in self.line:
            if item.kv is not None:
                continue
            need = ceil_div(item.r.num_tokens, self.c.bs)
            wm = int(self.c.watermark * (self.c.blocks + 1)) if self.running else 0
            if need > len(self.pool.free) - wm:
                return
            item.r.blocks = [self.pool.pop() for _ in range(need)]
            start = max(now, self.send_free[item.sender], self.receive_free)
            end = start + ceil_div(item.r.P, self.c.bs) * self.block_time
            self.send_free[item.sender] = self.receive_free = end
            item.kv = end + self.latency


class Pools:
    """Both pools and what is under way between them. ``prefill`` and ``decode`` requests are told apart by pool."""

    def __init__(
        self,
        prefill: tuple[Config, list[Request], int, str],
        decode: tuple[Config, list[Request], int, str],
        block_time: int,
        latency: int,
        first_from_prefill: bool,
    ) -> None:
        self.first_from_prefill = first_from_prefill
        config, self.prompts, count, router = prefill
        self.decodes = decode[1]
        ends_here = {r.index for r in self.decodes if r.N == 1} if first_from_prefill else set()
        self.prefill = Cluster(config, self.prompts, count, router)
        self.prefill.replicas = [Prefill(config, ends_here) for _ in range(count)]
        send_free = [0] * count
        config, _, count, router = decode
        self.decode = Cluster(config, self.decodes, count, router)
        self.decode.replicas = [Decode(config, block_time, latency, send_free) for _ in range(count)]
        self.kv: dict[int, int] = {}
        self.lost: set[int] = set()

    def choose(self, cluster: Cluster, r: Request, now: int) -> int:
        k = cluster.choose(r, now)
        cluster.next = (k + 1) % len(cluster.replicas)
        cluster.chosen.append(k)
        return k

    def run(self) -> None:
        pending = sorted(self.prompts, key=lambda r: (r.arrival, r.index))
        prefills, decodes = self.prefill.replicas, self.decode.replicas
        at: dict[int, int] = {}
        while True:
            times = [one.due for one in (*prefills, *decodes) if one.due is not None]
            times += [pending[0].arrival] if pending else []
            times += [item.kv for one in decodes for item in one.sent_items if item.kv is not None and not item.ended]
            if not times:
                return
            now = min(times)
            due = {one for one in (*prefills, *decodes) if one.due == now}
            idle = {one for one in (*prefills, *decodes) if one.due is None}
            leaving = []
            for one in prefills:
                if one in due:
                    leaving += one.finish_and_tell()
            for one in decodes:
                if one in due:
                    one.finish()
            for one in decodes:
                for item in one.sent_items:
                    if item.kv != now or item.ended:
                        continue
                    item.ended = True
                    self.kv[item.r.index] = now
                    sender = prefills[item.sender]
                    sender.pool.release(sender.kept.pop(item.r.index))
                    due |= {one} & idle
                    if sender.waiting:
                        due |= {sender} & idle
            while pending and pending[0].arrival <= now:
                r = pending.pop(0)
                k = self.choose(self.prefill, r, now)
                at[r.index] = k
                prefills[k].receive(r)
                due |= {prefills[k]} & idle
            for prompt in leaving:
                r = self.decodes[prompt.index]
                one = decodes[self.choose(self.decode, r, now)]
                if self.first_from_prefill:
                    r.gen, r.first, r.last = 1, prompt.first, prompt.first
                if prompt.index in prefills[at[prompt.index]].kept:
                    r.state = "waiting"
                    one.sent.append(r)
                    item = Item(r, at[r.index])
                    one.line.append(item)
                    one.sent_items.append(item)
                else:
                    self.lost.add(r.index)
                    one.receive(r)
                due |= {one} & idle
            for one in (*prefills, *decodes):
                if one in due:
                    one.start(now)
