"""Naive twin of the SGLang scheduler (engine semantics 1.3)."""

from __future__ import annotations

from dataclasses import dataclass, field

from naive.batches import Request, Twin, ceil_div

CLIP = 4096


@dataclass
class Sglang(Twin):
    chunk_size: int | None = 8192
    max_prefill_tokens: int = 16384
    ratio_first: float = 0.7
    ratio_least: float = 0.098
    chunked: Request | None = None
    full: bool = False
    log: list[list[object]] = field(default_factory=list)
    """Each step's free or evictable pages and [request, tokens]."""

    def __post_init__(self) -> None:
        self.ratio = self.ratio_first

    def on_idle(self) -> None:
        self.ratio = self.ratio_first

    def on_finish(self) -> None:
        self.full = False

    def schedule(self, now: int) -> None:
        self.prefill(now)
        if not self.batch:
            self.decode()
        self.make_room(0)
        if self.batch:
            self.log.append([self.free, sorted([e.r.index, e.tokens] for e in self.batch)])

    def page_up(self, tokens: int) -> int:
        return ceil_div(tokens, self.bs) * self.bs

    # --- what a radix cache adds ---
    def sort_queue(self) -> None:
        """Orders the waiting requests."""

    def keep(self, r: Request, tokens: int) -> None:
        """The first tokens of a running request may be shared from now on."""

    def match(self, r: Request) -> int:
        """Cached tokens that a waiting request may use."""
        return 0

    def lock(self, r: Request) -> int:
        """Keeps what was matched; returns tokens that can be evicted no more."""
        return 0

    def unlock(self, r: Request) -> None:
        """Undoes ``lock``."""

    def make_room(self, pages: int) -> None:
        """So many pages are to be free beside what is cached."""

    def prefill(self, now: int) -> None:
        if self.chunked is not None or not self.running:
            self.full = False
        if self.chunked is None and (self.full or not self.waiting):
            return
        others = [r for r in self.running if r is not self.chunked]
        if self.chunked is None and len(others) >= self.slots:
            self.full = True
            return
        if self.chunked is not None:
            self.keep(self.chunked, self.chunked.comp)
        self.sort_queue()
        free = self.free * self.bs
        reserved = sum(min(r.M - r.gen, CLIP) * self.ratio for r in others)
        memory, inputs = free, self.max_prefill_tokens
        chunk = self.chunk_size if self.chunk_size is not None else 1 << 60

        def charge(tokens: int, output: int) -> None:
            nonlocal reserved, memory, inputs, chunk
            reserved += self.page_up(tokens) + self.bs + output
            memory -= self.page_up(tokens) + self.bs
            inputs -= self.page_up(tokens)
            chunk -= self.page_up(tokens)

        if self.chunked is not None:
            r = self.chunked
            limit = min(chunk, int(free - reserved))
            if limit <= 0:
                limit = chunk
            tokens, output = min(r.todo, limit), min(r.M, CLIP)
            if tokens < r.todo:
                output = 0
            else:
                self.chunked = None
            self.hold(r, r.comp + tokens)
            self.add(r, tokens)
            charge(tokens, output)
        while self.waiting:
            if free > reserved and memory > 0 and (inputs <= 0 or chunk <= 0):
                return
            if len(others) + len(self.batch) >= self.slots:
                self.full = bool(others)
                return
            r = self.waiting[0]
            hit = self.match(r)
            tokens, output = r.todo - hit, min(r.M, CLIP)
            locked = self.lock(r)
            if tokens + min(r.M - r.gen, CLIP) + self.bs >= free - locked - reserved:
                self.unlock(r)
                self.full = bool(others)
                return
            if self.chunk_size is None and self.page_up(tokens) >= inputs and self.batch:
                self.unlock(r)
                return
            if self.page_up(tokens) > chunk:
                tokens, output = chunk // self.bs * self.bs, 0
                if tokens <= 0:
                    self.unlock(r)
                    return
                self.chunked = r
            free -= locked
            memory -= locked
            self.admit(r, now)
            r.comp = hit
            r.hits += hit
            self.hold(r, hit + tokens)
            self.add(r, tokens)
            charge(tokens, output)
            if free <= reserved or memory <= 0:
                self.full = bool(others)
                return
            if inputs <= 0 or chunk <= 0:
                return

    def new_blocks(self, rows: list[Request]) -> int:
        return sum(r.comp + 1 > r.blocks * self.bs for r in rows)

    def decode(self) -> None:
        rows = [r for r in self.running if not r.complete]
        ending = len(rows) < len(self.running)
        if ending:
            self.full = False
        if not rows:
            return
        if self.new_blocks(rows) > self.free:
            if ending:
                return  # what they free is there in the next step
            once = False
            self.make_room(self.new_blocks(rows))
            while len(rows) > 1 and (not once or self.new_blocks(rows) > self.free):
                # The best are kept: most output tokens, then the shorter prompt, then the earlier.
                rows.sort(key=lambda r: (-r.gen, r.P, self.running.index(r)))
                self.retract(rows.pop())
                self.make_room(ceil_div(len(rows) * 20, self.bs))
                self.make_room(self.new_blocks(rows))
                once = True
            kept = self.running
            self.ratio = min(1.0, (sum(r.gen for r in kept) + 20 * len(kept)) / (sum(r.M for r in kept) + 1))
            if once:
                self.full = False
            if self.new_blocks(rows) > self.free:
                return
        else:
            self.ratio = max(self.ratio - (self.ratio_first - self.ratio_least) / 600, self.ratio_least)
        for r in self.running:
            if r in rows:
                self.hold(r, r.comp + 1)
                self.add(r, 1)

    def retract(self, r: Request) -> None:
        self.running.remove(r)
        self.let_go(r)
        r.life += 1
        r.flying = 0
        r.comp = 0
        r.preemptions += 1
        self.waiting.append(r)
        self.preempted = True
