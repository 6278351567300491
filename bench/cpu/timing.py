"""Interleaved timing: every contestant runs a burst in turn, round after round, so that all meet the same machine."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

PAUSE_S = 0.005  # lets the waiting threads of the previous contestant go to sleep


@dataclass(frozen=True)
class Effort:
    """Each contestant gets `rounds` bursts: one untimed call, then at least one timed call and `burst_s` seconds."""

    rounds: int = 5
    burst_s: float = 0.1


@dataclass
class Contestant:
    """`calls` do the same work on different memory and take turns; `after` runs untimed behind each call."""

    name: str
    calls: Sequence[Callable[[], object]]
    bytes_read: float
    after: Callable[[], object] = lambda: None


def _burst(contestant: Contestant, seconds: float) -> list[float]:
    times: list[float] = []
    turn = 0
    while not times or sum(times) < seconds:
        call = contestant.calls[turn % len(contestant.calls)]
        begin = time.perf_counter()
        call()
        took = time.perf_counter() - begin
        contestant.after()
        if turn > 0:  # the first call warms up
            times.append(took)
        turn += 1
    return times


def measure(contestants: Sequence[Contestant], effort: Effort) -> dict[str, dict[str, float]]:
    """{name: {median_ms, min_ms, max_ms}} over all timed calls of all rounds."""
    times: dict[str, list[float]] = {c.name: [] for c in contestants}
    for _ in range(effort.rounds):
        for contestant in contestants:
            time.sleep(PAUSE_S)
            times[contestant.name] += _burst(contestant, effort.burst_s)
    return {
        name: {
            "median_ms": statistics.median(values) * 1e3,
            "min_ms": min(values) * 1e3,
            "max_ms": max(values) * 1e3,
        }
        for name, values in times.items()
    }
