"""A naive twin of a cluster's life: followers (closed loop), queue limits, clients that give up, replicas that come and
go.

Written from docs/cluster-life.md, for reading rather than for speed: every list is searched, nothing is kept in order.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from naive.routers import Cluster, Replica
from naive.vllm import Config, Request

Batch = list[tuple[Request, int, int]]


@dataclass
class Life:
    """What may happen: ``after[i]`` and ``delay[i]`` of followers (-1: open), limits (-1: none), the patience of each
    client (-1: endless; empty: of all), and (time, is lost, replica) in order."""

    after: list[int]
    delay: list[int]
    most_requests: int = -1
    most_prompt_tokens: int = -1
    patience: list[int] = field(default_factory=list)
    changes: list[tuple[int, int, int]] = field(default_factory=list)
    down: set[int] = field(default_factory=set)


class LivingReplica(Replica):
    """A replica whose batches may hold requests whose clients have gone."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.gone: set[int] = set()
        self.busy = 0

    def process(self, batch: Batch, end: int) -> None:
        self.busy += self.duration(batch)
        super().process([entry for entry in batch if entry[0].index not in self.gone], end)

    def start(self, now: int) -> None:
        if self.waiting or self.running or not (self.flight and self.flight[0][0]):
            super().start(now)  # else the batch in flight, of clients that have gone, goes on to its end

    def clear(self) -> None:
        for r in [r for r in self.running if r.index in self.gone]:
            self.running.remove(r)
            self.free(r)
            r.state = "finished"


class LivingCluster(Cluster):
    """``status`` of each request: finished, refused, refused_tokens, gave_up, held, or open where it never arrived."""

    def __init__(self, config: Config, requests: list[Request], replicas: int, router: str, life: Life, **how) -> None:
        super().__init__(config, requests, replicas, router, **how)
        self.config, self.life = config, life
        self.replicas = [LivingReplica(config) for _ in range(replicas)]
        self.down = set(life.down)
        self.changes = list(life.changes)
        self.held: list[Request] = []
        self.sent = {r.index: r.arrival for r in requests if life.after[r.index] < 0}
        self.status = ["open"] * len(requests)
        self.at: dict[int, int] = {}
        self.dead: list[LivingReplica] = []
        self.arrived: list[Request] = []
        self.to_come = list(requests)

    # --- what happens to one request ---
    def over(self, r: Request, status: str, when: int) -> None:
        self.status[r.index] = status
        for i, before in enumerate(self.life.after):
            if before == r.index:
                self.sent[i] = when + self.life.delay[i]

    def send(self, r: Request, now: int) -> None:
        up = [k for k in range(len(self.replicas)) if k not in self.down]
        if not up:
            self.held.append(r)
            self.status[r.index] = "held"
            return
        k = self.choose(r, now)
        self.next = (k + 1) % len(self.replicas)
        self.sent_since.append((now, k))
        replica = self.replicas[k]
        if self.blocks is not None:
            self.known[k].update(self.blocks[r.index])
        inside = replica.waiting + replica.running
        if 0 <= self.life.most_requests <= len(inside):
            self.over(r, "refused", now)
        elif 0 <= self.life.most_prompt_tokens <= sum(x.P for x in inside if x.first < 0):
            self.over(r, "refused_tokens", now)
        else:
            self.status[r.index] = "in"
            self.at[r.index] = k
            replica.receive(r)
            replica.rank(r)
            if replica.due is None:
                self.ready.add(k)

    def choose(self, r: Request, now: int) -> int:
        n = len(self.replicas)
        up = [k for k in range(n) if k not in self.down]
        in_turn = [(self.next + i) % n for i in range(n) if (self.next + i) % n in up]
        if self.router == "round_robin":
            return in_turn[0]
        if self.router == "dealt":
            start = self.pairs[r.index][0]
            return next(k for k in ((start + i) % n for i in range(n)) if k in up)
        scores = [self.score(k, now) for k in range(n)]
        if self.router == "power_of_two":
            one, other = self.pairs[r.index]
            pair = [k for k in (one, other) if k in up]
            return min(pair or in_turn, key=lambda k: scores[k])
        if self.router == "prefix_aware":
            matches = {k: self.match(k, r) for k in up}
            most, least = max(scores[k] for k in up), min(scores[k] for k in up)
            if (most - least <= 64 or 2 * most <= 3 * least) and 10 * max(matches.values()) >= 3 * r.P:
                in_turn = [k for k in in_turn if matches[k] == max(matches.values())]
        return min(in_turn, key=lambda k: scores[k])

    def give_up(self, r: Request, now: int) -> None:
        if r in self.held:
            self.held.remove(r)
        else:
            k = self.at[r.index]
            replica = self.replicas[k]
            replica.gone.add(r.index)
            if r in replica.waiting:
                replica.waiting.remove(r)
                r.state = "finished"
            if replica.due is None:
                self.ready.add(k)
        self.over(r, "gave_up", now)

    # --- what happens to a replica ---
    def lose(self, k: int, now: int) -> None:
        lost = self.replicas[k]
        if lost.flight:
            due = lost.due
            lost.busy += now - (due - lost.duration(lost.flight[0][0]))
        self.dead.append(lost)
        self.replicas[k] = LivingReplica(self.config)
        self.replicas[k].previous_end = lost.previous_end
        self.known[k] = set()
        self.down.add(k)
        self.ready.discard(k)
        for r in sorted((r for r in self.requests if self.status[r.index] == "in"), key=lambda r: r.index):
            if self.at[r.index] == k:
                r.comp = r.gen = r.placeholders = r.cached_blocks = r.stale = 0
                r.blocks = []
                r.first = r.last = r.admitted = -1
                self.held.append(r)
                self.status[r.index] = "held"

    # --- time ---
    def leaving(self) -> list[tuple[int, Request]]:
        """When each client that waits now will leave, and its request."""
        return [
            (self.sent[r.index] + self.life.patience[r.index], r)
            for r in self.arrived
            if self.life.patience and self.life.patience[r.index] >= 0 and self.status[r.index] in ("in", "held")
        ]

    def run(self) -> None:
        self.ready: set[int] = set()
        while True:
            times = [replica.due for replica in self.replicas if replica.due is not None]
            times += [self.sent[r.index] for r in self.to_come if r.index in self.sent]
            times += [time for time, _, _ in self.changes]
            times += [time for time, _ in self.leaving()]
            if not times:
                return
            self.instant(min(times))

    def instant(self, now: int) -> None:
        self.ready = {k for k, replica in enumerate(self.replicas) if replica.due == now}
        for k in sorted(self.ready):
            self.replicas[k].finish()
        for r in self.requests:
            if self.status[r.index] == "in" and r.state == "finished":
                self.over(r, "finished", now)
        while self.changes and self.changes[0][0] <= now:
            _, is_lost, k = self.changes.pop(0)
            if is_lost:
                self.lose(k, now)
            else:
                self.down.remove(k)
        for time, r in self.leaving():
            if time <= now:
                self.give_up(r, now)
        for k in self.ready:
            self.replicas[k].clear()
        self.log.append((now, self.look()))
        if len(self.down) < len(self.replicas):
            held, self.held = self.held, []
            for r in held:
                self.send(r, now)
        while True:
            arriving = [r for r in self.to_come if self.sent.get(r.index, now + 1) <= now]
            if not arriving:
                break
            r = min(arriving, key=lambda r: (self.sent[r.index], r.index))
            self.to_come.remove(r)
            self.arrived.append(r)
            self.send(r, now)
        for k in sorted(self.ready):
            self.replicas[k].start(now)
        self.log.append((now, self.look()))
