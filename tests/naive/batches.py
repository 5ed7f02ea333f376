"""What the twins of SGLang, TensorRT-LLM and TGI share: requests, batches in flight, one clock. Plain and slow."""

from __future__ import annotations

from dataclasses import dataclass, field


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


@dataclass(eq=False)
class Request:
    index: int
    arrival: int
    P: int
    N: int
    M: int
    """Declared limit of the output."""
    gen: int = 0
    comp: int = 0
    flying: int = 0
    """Sampled tokens in flight."""
    life: int = 0
    """Raised when tokens in flight are to be dropped."""
    blocks: int = 0
    admitted: int = -1
    first: int = -1
    last: int = -1
    preemptions: int = 0
    hits: int = 0
    refused: bool = False
    after: int = -1
    """The request that must end first; its arrival is then ``delay`` after that."""
    delay: int = 0

    @property
    def todo(self) -> int:
        return self.P + self.gen + self.flying - self.comp

    @property
    def complete(self) -> bool:
        """Once what is in flight has come out."""
        return self.gen + self.flying >= self.N


@dataclass
class Entry:
    r: Request
    tokens: int
    before: int
    emits: bool
    life: int


@dataclass
class Twin:
    """A scheduler subclasses it with ``schedule(now)`` and, where it needs them, ``on_finish`` and ``on_idle``."""

    slots: int
    budget: int
    bs: int
    blocks: int
    cost: tuple[int, int, int, int, int]
    depth: int = 1
    waiting: list[Request] = field(default_factory=list)
    running: list[Request] = field(default_factory=list)
    batch: list[Entry] = field(default_factory=list)
    free: int = 0
    steps: int = 0
    scheduled: int = 0
    end: int = 0
    gaps: list[int] = field(default_factory=list)
    preempted: bool = False

    def schedule(self, now: int) -> None:
        raise NotImplementedError

    def before_output(self, e: Entry) -> None:
        """A request is about to get its token."""

    def on_finish(self) -> None:
        """Requests have left."""

    def on_idle(self) -> None:
        """Nobody is left."""

    def arrive(self, r: Request) -> None:
        self.waiting.append(r)

    # --- tools ---
    def hold(self, r: Request, tokens: int) -> None:
        need = max(0, ceil_div(tokens, self.bs) - r.blocks)
        assert need <= self.free
        self.free -= need
        r.blocks += need

    def let_go(self, r: Request) -> None:
        self.free += r.blocks
        r.blocks = 0

    def add(self, r: Request, tokens: int) -> None:
        emits = tokens == r.todo
        self.batch.append(Entry(r, tokens, r.comp, emits, r.life))
        r.comp += tokens
        r.flying += emits

    def admit(self, r: Request, now: int) -> None:
        self.waiting.remove(r)
        self.running.append(r)
        if r.admitted < 0:
            r.admitted = now

    # --- the clock ---
    def duration(self, batch: list[Entry]) -> int:
        w, a, b, e2, o = self.cost
        tokens = sum(e.tokens for e in batch)
        context = sum(e.before + 1 for e in batch if e.tokens == 1)
        pairs = sum(e.tokens * (2 * e.before + e.tokens + 1) for e in batch if e.tokens > 1)
        return max(w, a * tokens) + b * context + e2 * pairs + o

    def process(self, batch: list[Entry], end: int) -> None:
        left = False
        for e in batch:
            r = e.r
            if not e.emits or e.life != r.life:
                continue
            self.before_output(e)
            r.flying -= 1
            r.gen += 1
            if r.first < 0:
                r.first = end
            else:
                self.gaps.append(end - r.last)
            r.last = end
            if r.gen == r.N:
                if r in self.running:
                    self.running.remove(r)
                    left = True
                else:
                    self.waiting.remove(r)
                self.let_go(r)
                self.ended(r, end)
        if left:
            self.on_finish()

    def ended(self, r: Request, when: int) -> None:
        for follower in self.followers:
            if follower.after == r.index:
                follower.arrival = when + follower.delay
                self.pending.append(follower)
        self.pending.sort(key=lambda r: (r.arrival, r.index))

    def take(self) -> None:
        r = self.pending.pop(0)
        self.arrive(r)
        if r.refused:
            self.ended(r, r.arrival)

    def run(self, requests: list[Request]) -> None:
        self.free = self.blocks
        self.followers = [r for r in requests if r.after >= 0]
        self.pending = pending = sorted((r for r in requests if r.after < 0), key=lambda r: r.arrival)
        now, previous_end = 0, 0
        queue: list[tuple[list[Entry], int]] = []
        while True:
            while pending and pending[0].arrival <= now:
                self.take()
            if not self.waiting and not self.running:
                queue.clear()
                self.on_idle()
                if not pending:
                    break
                now = max(now, pending[0].arrival)
                continue
            self.preempted = False
            while len(queue) < self.depth:
                self.batch = []
                self.schedule(now)
                if self.batch:
                    self.steps += 1
                    self.scheduled += sum(e.tokens for e in self.batch)
                queue.append((self.batch, now))
            batch, at = queue.pop(0)
            if batch:
                now = max(previous_end, at) + self.duration(batch)
                previous_end = self.end = now
                while pending and pending[0].arrival < now:  # seen while the batch still runs
                    self.take()
                self.process(batch, now)
            else:
                assert self.preempted or any(b for b, _ in queue), "stuck"
