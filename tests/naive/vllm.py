"""A naive twin of the vLLM v1 scheduler: objects, lists and dictionaries, one request and one block at a time.

Written from the specification (engine semantics, sections 1.1 and 2), for reading rather than for speed. The kernels
must give the same integers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from replay.verify import case_rules


@dataclass
class Config:
    S: int
    B: int
    bs: int
    blocks: int
    cost: tuple[int, int, int, int, int]
    thr: int = 0
    chunked: bool = True
    full_isl: bool = True
    watermark: float = 0.0
    async_: bool = False
    caching: bool = False
    policy: str = "fcfs"
    """fcfs, priority, sjf or srpt; by length the ``priority`` of a request is its predicted length in 1e-6 tokens."""
    thr_binds_lone_request: bool = False
    unchunked_looks_further: bool = False
    max_model_len: int = 1 << 40
    g: int = 0
    """Draft tokens of a decode."""
    accept: Callable[[Request, int], int] = lambda r, drafts: 0
    """How many of so many drafts of a request are accepted now."""
    draft_step: tuple[int, int] = (0, 0)
    """A draft pass: ps, and millionths of the model's own decode step."""
    frees_in_order: bool = False
    victims_stay: bool = False
    """Whom a step preempts after it was scheduled stays in the batch, and the request after it is passed over."""
    runs_past_end: bool = False
    """A request whose last token is in flight is scheduled again; that token is dropped."""
    host_blocks: int = 0
    """Blocks that host memory keeps of those evicted; copying back costs the step ``host_cost`` = (once, a block)."""
    host_cost: tuple[int, int] = (0, 0)


@dataclass(eq=False)
class Request:
    index: int
    arrival: int
    P: int
    N: int
    priority: int = 0
    rank: int = 0
    prefix: tuple[int, int] | None = None
    segments: tuple[int, ...] = ()
    """What the prompt's leading pieces of ``segment_tokens`` tokens hold; equal pieces are equal text."""
    segment_tokens: int = 1
    text: tuple[object, ...] = ()
    """Where prompts extend earlier texts: every token of prompt and output, named after who first wrote it."""
    comp: int = 0
    gen: int = 0
    placeholders: int = 0
    drafts: int = 0
    blocks: list[Block] = field(default_factory=list)
    cached_blocks: int = 0
    stale: int = 0
    """Computed tokens that it is taken to have after a preemption in a batch that it stayed in."""
    state: str = "new"
    first: int = -1
    last: int = -1
    admitted: int = -1
    preemptions: int = 0
    hits: int = 0

    @property
    def num_tokens(self) -> int:
        return self.P + self.gen

    @property
    def key(self) -> tuple[int, int]:
        return (self.priority, self.index)

    def block_hash(self, i: int, bs: int) -> tuple[object, ...]:
        """What block ``i`` holds, with all before it."""
        last = (i + 1) * bs - 1
        if self.text:
            return ("text", self.text[: last + 1])
        if last < min(self.P, len(self.segments) * self.segment_tokens):
            return ("text", self.segments[: last // self.segment_tokens + 1], last)
        if self.prefix is not None and (i + 1) * bs <= min(self.prefix[1], self.P):
            return ("shared", self.prefix[0], i)
        return ("own", self.index, i)


@dataclass(eq=False)
class Block:
    id: int
    hash: tuple[object, ...] | None = None
    refs: int = 0


class Pool:
    """Blocks in eviction order; hashed blocks stay findable while free."""

    def __init__(self, n: int, in_order: bool = False, host_size: int = 0) -> None:
        self.in_order = in_order
        self.host_size = host_size
        self.host: list[tuple[object, ...]] = []
        """Names of blocks in host memory, the one used least lately first."""
        self.free = [Block(i) for i in range(n)]
        self.cached: dict[tuple[object, ...], list[Block]] = {}

    def pop(self) -> Block:
        block = self.free.pop(0)
        if block.hash is not None:
            same = self.cached[block.hash]
            same.remove(block)
            if not same:
                del self.cached[block.hash]
            self.to_host(block.hash)
            block.hash = None
        block.refs = 1
        return block

    def to_host(self, name: tuple[object, ...]) -> None:
        if name in self.host:
            self.host.remove(name)
        self.host.append(name)
        self.host = self.host[max(0, len(self.host) - self.host_size) :]

    def touch(self, block: Block) -> None:
        if block.refs == 0:
            self.free.remove(block)
        block.refs += 1

    def release(self, blocks: list[Block]) -> None:
        done = []
        for block in reversed(blocks):
            block.refs -= 1
            if block.refs == 0:
                done.append(block)
        if self.in_order:
            self.free += done
            return
        self.free = [b for b in done if b.hash is None] + self.free + [b for b in done if b.hash is not None]


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


class Engine:
    def __init__(self, config: Config, requests: list[Request]) -> None:
        self.c = config
        self.pool = Pool(config.blocks, config.frees_in_order, config.host_blocks)
        self.pending = sorted(requests, key=lambda r: (r.arrival, r.index))
        self.requests = requests
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.steps = 0
        self.end = 0
        self.scheduled = 0
        self.hits = 0
        self.gaps: list[int] = []
        self.host_hits = 0
        self.loading: dict[int, int] = {}
        """Time that a scheduled batch spends on copies from the host, by the batch's identity."""

    # --- memory -------------------------------------------------------------------------------------------------
    def lookup(self, r: Request) -> list[Block]:
        found: list[Block] = []
        if not self.c.caching:
            return found
        for i in range((r.num_tokens - 1) // self.c.bs):
            same = self.pool.cached.get(r.block_hash(i, self.c.bs))
            if not same:
                break
            found.append(same[0])
        return found

    def on_host(self, r: Request, first: int) -> list[tuple[object, ...]]:
        """Names of the blocks of ``r`` from ``first`` on that host memory has, up to the first miss."""
        names = []
        for i in range(first, (r.num_tokens - 1) // self.c.bs if self.c.host_blocks else first):
            if r.block_hash(i, self.c.bs) not in self.pool.host:
                break
            names.append(r.block_hash(i, self.c.bs))
        return names

    def hit_tokens(self, found: list[Block]) -> int:
        return len(found) * self.c.bs

    def asks(self, tokens: int, found: list[Block]) -> int:
        """Free blocks that the admission test wants for so many tokens; cached blocks that are free count."""
        return ceil_div(tokens, self.c.bs) - len(found) + sum(1 for b in found if b.refs == 0)

    def take(self, r: Request, found: list[Block]) -> None:
        for b in found:
            self.pool.touch(b)
        r.blocks = list(found)
        r.cached_blocks = len(found)

    def cache(self, r: Request, tokens: int) -> None:
        if not self.c.caching:
            return
        for i in range(r.cached_blocks, tokens // self.c.bs):
            block = r.blocks[i]
            block.hash = r.block_hash(i, self.c.bs)
            self.pool.cached.setdefault(block.hash, []).append(block)
            r.cached_blocks = i + 1

    def grow(self, r: Request, tokens: int, ahead: int = 0) -> bool:
        need = ceil_div(min(tokens + ahead, self.c.max_model_len), self.c.bs) - len(r.blocks)
        if need > len(self.pool.free):
            return False
        r.blocks += [self.pool.pop() for _ in range(need)]
        self.cache(r, min(tokens, r.num_tokens))
        return True

    def free(self, r: Request) -> None:
        self.pool.release(r.blocks)
        r.blocks = []
        r.cached_blocks = 0

    # --- one schedule -------------------------------------------------------------------------------------------
    def schedule(self, now: int) -> list[tuple[Request, int, int]]:
        """The batch as (request, tokens, computed before)."""
        c = self.c
        budget = c.B
        batch: dict[int, tuple[Request, int, int]] = {}
        loaded = 0
        thr = c.thr if c.thr_binds_lone_request or len(self.running) + len(self.waiting) > 1 else 0
        preempted_any = False
        i = 0
        while i < len(self.running) and budget > 0:
            r = self.running[i]
            if not c.runs_past_end and r.placeholders > 0 and r.comp + 2 - r.placeholders >= r.P + r.N:
                i += 1
                continue
            q = r.num_tokens + r.placeholders + r.drafts - r.comp
            if 0 < thr < q:
                q = thr
            q = min(q, budget, c.max_model_len - 1 - r.comp)
            if q <= 0:
                i += 1
                continue
            granted = True
            while not self.grow(r, r.comp + q, c.g):
                victim = max(self.running, key=lambda x: x.key) if c.policy == "priority" else self.running[-1]
                position = self.running.index(victim)
                self.running.remove(victim)
                if victim.index in batch and not c.victims_stay:
                    budget += batch.pop(victim.index)[1]
                if position < i and not c.victims_stay:
                    i -= 1
                self.preempt(victim)
                preempted_any = True
                if victim is r:
                    granted = False
                    break
            if not granted:
                if c.policy != "priority" or c.victims_stay:
                    break
                continue
            batch[r.index] = (r, q, r.comp)
            budget -= q
            i += 1
        if not preempted_any:
            passed: list[Request] = []
            while budget > 0 and len(self.running) < c.S:
                queue = [r for r in self.waiting if r not in passed]
                if not queue:
                    break
                r = queue[0] if c.policy == "fcfs" else min(queue, key=lambda x: (x.rank, x.index))
                hit_blocks = self.lookup(r) if not r.stale else []
                on_host = self.on_host(r, len(hit_blocks)) if not r.stale else []
                hit = self.hit_tokens(hit_blocks) + len(on_host) * c.bs + r.stale
                q = r.num_tokens - hit
                if 0 < thr < q:
                    q = thr
                if not c.chunked and q > budget:
                    if not c.unchunked_looks_further:
                        break
                    passed.append(r)
                    continue
                q = min(q, budget)
                wm = int(c.watermark * (c.blocks + 1)) if self.running else 0
                room = len(self.pool.free) - wm
                if c.full_isl and self.asks(r.num_tokens, hit_blocks) > room:
                    break
                if self.asks(hit + q, hit_blocks) > room:
                    break
                self.waiting.remove(r)
                self.running.append(r)
                r.state = "running"
                self.take(r, hit_blocks)
                r.comp = hit
                for name in on_host:
                    self.pool.to_host(name)
                loaded += len(on_host)
                self.hits += hit - r.stale
                r.hits += hit - r.stale
                r.stale = 0
                assert self.grow(r, hit + q)
                batch[r.index] = (r, q, hit)
                budget -= q
                if r.admitted < 0:
                    r.admitted = now
            if passed and c.policy == "fcfs":
                # Each was put in front of a queue of their own, and that one in front of this.
                self.waiting = passed[::-1] + [r for r in self.waiting if r not in passed]
        self.host_hits += loaded * c.bs
        for r, q, before in batch.values():
            if r.state == "preempted":
                r.stale = q
                r.placeholders += before + q >= r.num_tokens + r.placeholders
                continue
            r.comp += q
            if r.comp >= r.num_tokens + r.placeholders:
                r.placeholders += 1
        rows = list(batch.values())
        self.loading[id(rows)] = c.host_cost[0] + loaded * c.host_cost[1] if loaded else 0
        return rows

    def preempt(self, r: Request) -> None:
        self.free(r)
        r.comp = 0
        r.drafts = 0
        r.state = "preempted"
        r.preemptions += 1
        self.waiting.insert(0, r)
        self.rank(r)

    def rank(self, r: Request) -> None:
        """Fixes the place of a request that is being queued: srpt counts what it still has to give."""
        r.rank = r.priority - (1_000_000 * r.gen if self.c.policy == "srpt" else 0)

    # --- one step's end -----------------------------------------------------------------------------------------
    def duration(self, batch: list[tuple[Request, int, int]]) -> int:
        w, a, b, e2, o = self.c.cost
        T = sum(q for _, q, _ in batch)
        like_decodes = [(r, q, comp) for r, q, comp in batch if q == 1 or comp + q > r.num_tokens]
        K = sum(comp + q for _, q, comp in like_decodes)
        A2 = sum(q * (2 * comp + q + 1) for r, q, comp in batch if (r, q, comp) not in like_decodes)
        drafting = 0
        if any(comp + q > r.num_tokens for r, q, comp in batch):
            alone, share = self.c.draft_step
            drafting = self.c.g * (alone + (max(w, a * len(like_decodes)) + o + b * K) // 1000 * share // 1000)
        return max(w, a * T) + b * K + e2 * A2 + o + drafting + self.loading.get(id(batch), 0)

    def process(self, batch: list[tuple[Request, int, int]], end: int) -> None:
        for r, q, comp in batch:
            if comp + q < r.num_tokens or r.state == "finished":
                continue
            r.placeholders -= 1
            drafts = max(0, comp + q - r.num_tokens)
            accepted = self.c.accept(r, drafts) if drafts else 0
            r.comp -= drafts - accepted
            r.drafts = self.c.g
            for _ in range(min(accepted + 1, r.N - r.gen, self.c.max_model_len - r.num_tokens)):
                r.gen += 1
                if r.first < 0:
                    r.first = end
                else:
                    self.gaps.append(end - r.last)
                r.last = end
            if r.state == "running":
                self.cache(r, r.comp - r.placeholders)
            if r.gen == r.N or r.num_tokens >= self.c.max_model_len:
                if r.state == "running":
                    self.running.remove(r)
                    self.free(r)
                else:
                    self.waiting.remove(r)
                r.state = "finished"

    def arrivals(self, now: int) -> None:
        while self.pending and self.pending[0].arrival <= now:
            r = self.pending.pop(0)
            r.state = "waiting"
            self.waiting.append(r)
            self.rank(r)

    def count(self, batch: list[tuple[Request, int, int]]) -> None:
        if batch:
            self.steps += 1
            self.scheduled += sum(q for _, q, _ in batch)

    def run(self) -> None:
        if self.c.async_:
            self.run_async()
        else:
            self.run_sync()

    def run_sync(self) -> None:
        now = 0
        while True:
            self.arrivals(now)
            if not self.waiting and not self.running:
                if not self.pending:
                    break
                now = self.pending[0].arrival
                continue
            before = sum(r.preemptions for r in self.requests)
            batch = self.schedule(now)
            if not batch:
                assert sum(r.preemptions for r in self.requests) > before, "stuck"
                continue
            self.count(batch)
            now += self.duration(batch)
            self.process(batch, now)
            self.end = now

    def run_async(self) -> None:
        now = 0
        previous_end = 0
        queue: list[tuple[list[tuple[Request, int, int]], int]] = []
        while True:
            self.arrivals(now)
            if not self.waiting and not self.running:
                for batch, at in queue:  # of requests that have ended
                    if batch:
                        now = previous_end = self.end = max(previous_end, at) + self.duration(batch)
                queue.clear()
                if self.pending and self.pending[0].arrival <= now:
                    continue
                if not self.pending:
                    break
                now = max(now, self.pending[0].arrival)
                continue
            while len(queue) < 2:
                self.arrivals(now)
                batch = self.schedule(now)
                self.count(batch)
                queue.append((batch, now))
            batch, at = queue.pop(0)
            if batch:
                start = max(previous_end, at)
                now = start + self.duration(batch)
                previous_end = now
                self.process(batch, now)
                self.end = now
            elif not any(b for b, _ in queue):
                # Nothing in flight and nothing schedulable: only an arrival can change that.
                assert self.pending or self.waiting, "stuck"


def from_case(case: dict) -> tuple[Config, list[Request]]:
    """A recorded case (engine semantics 8.3) as twin objects."""
    rules = case_rules(case)
    config = Config(
        S=case["S"],
        B=case["B"],
        bs=case["bs"],
        blocks=case["blocks"],
        cost=tuple(case["cost"]),
        thr=case["thr"],
        chunked=case["chunked"],
        full_isl=case["full_isl"],
        watermark=case["watermark"],
        async_=case["async_"],
        caching=case["caching"],
        policy=case["policy"],
        max_model_len=case.get("max_model_len", 1 << 40),
        thr_binds_lone_request=rules["threshold_binds_lone_request"],
        unchunked_looks_further=rules["unchunked_looks_further"],
        frees_in_order=rules["frees_in_order"],
        victims_stay=rules["victims_stay"],
        runs_past_end=rules["runs_past_end"] and case["async_"],
    )
    requests = [
        Request(
            i,
            case["arrival"][i],
            case["P"][i],
            case["N"][i],
            priority=case["priority"][i] if case["priority"] else 0,
            prefix=tuple(case["prefix"][i]) if case["prefix"] else None,
        )
        for i in range(len(case["P"]))
    ]
    return config, requests
