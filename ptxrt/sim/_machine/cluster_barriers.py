"""barrier.cluster: all threads of the blocks of a cluster arrive, and wait for each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

import numpy as np

from ptxrt.sim._machine.branches import GONE
from ptxrt.sim._machine.protocol import Machine
from ptxrt.sim._text.syntax import Instruction
from ptxrt.sim._text.types import Array

__all__ = ["ClusterBarriers"]

_NEVER = 1 << 60


@dataclass(eq=False)
class _Waiting:
    ins: Instruction
    lanes: Array
    following: int


class ClusterBarriers:
    """The barrier of each cluster of a chunk."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._waiting: list[_Waiting] = []
        clusters = machine.blocks // machine.shape.cluster_blocks
        self._phase = np.zeros(clusters, np.int64)
        """How often the barrier of each cluster has been complete."""
        self._releases = np.zeros(clusters, np.bool_)
        """Whether a thread of each has arrived with .release since."""
        self._arrived: Array | None = None
        """By place in the chunk: the phase that a thread has arrived in and not yet waited for."""

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def _clusters(self, lanes: Array) -> Array:
        m = self._machine
        return m.block[lanes] // m.shape.cluster_blocks

    def _arrivals(self) -> Array:
        if self._arrived is None:
            self._arrived = np.full(self._machine.blocks * self._machine.padded, _NEVER, np.int64)
        return self._arrived

    def arrive(self, ins: Instruction, *, releases: bool) -> None:
        """Note that the active lanes have arrived, each for the first time since it last waited."""
        m = self._machine
        lanes = m.active()
        arrivals = self._arrivals()
        again = arrivals[m.origin[lanes]] != _NEVER
        if again.any():
            problem = "barrier.cluster.arrive of a thread that has arrived and not yet waited, which is undefined"
            m.fault(ins, f"{problem}; put barrier.cluster.wait before it", int(lanes[again.argmax()]))
        arrivals[m.origin[lanes]] = self._phase[self._clusters(lanes)]
        if releases:
            self._releases[self._clusters(lanes)] = True
        if m.cluster_races is not None:
            m.cluster_races.arrive(releases=releases)
        self.release()

    def wait(self, ins: Instruction, following: int) -> int:
        """Let the active lanes wait for the barrier that they have arrived at."""
        self._waiting.append(_Waiting(ins, self._machine.active(), following))
        self.release()
        return GONE

    def release(self) -> None:
        """Complete the barriers of those clusters whose threads have all arrived or exited, and let lanes go on."""
        if self._arrived is None:
            if self._waiting:
                self._arrivals()
            return
        m = self._machine
        everyone = np.arange(m.n)
        clusters = self._clusters(everyone)
        here = self._arrived[m.origin] == self._phase[clusters]
        live = np.bincount(clusters, minlength=self._phase.shape[0])
        complete = (np.bincount(clusters[here], minlength=self._phase.shape[0]) == live) & (live > 0)
        if complete.any():
            self._phase += complete
            # Where all arrivals were .relaxed, nothing is ordered but what the race model of clusters says.
            ordered = complete & self._releases
            self._releases &= ~complete
            if ordered.any():
                m.passed_barrier(np.repeat(ordered, m.shape.cluster_blocks))
                held_idx, held_count = m.idx, m.count
                m.activate(everyone[ordered[clusters]])
                m.fence(of_barrier=True)
                m.idx, m.count = held_idx, held_count
        for group in self._waiting:
            going = self._arrived[m.origin[group.lanes]] < self._phase[self._clusters(group.lanes)]
            if going.any():
                self._arrived[m.origin[group.lanes[going]]] = _NEVER
                if m.cluster_races is not None:
                    m.cluster_races.waited(m.origin[group.lanes[going]])
                m.defer(group.following, group.lanes[going])
                group.lanes = group.lanes[~going]
        self._waiting = [group for group in self._waiting if group.lanes.size]

    def renumber(self, moved: Array) -> None:
        """Follow the lanes to their new places after others have exited."""
        for group in self._waiting:
            group.lanes = moved[group.lanes]

    def deadlock(self) -> NoReturn:
        """Raise Deadlock for the first lane that waits for ever."""
        m = self._machine
        group = min(self._waiting, key=lambda one: int(one.lanes[0]))
        lane = int(group.lanes[0])
        arrived = self._arrivals()[m.origin[lane]] != _NEVER
        problem = "threads of the cluster that have not exited never arrive" if arrived else "it has not arrived itself"
        m.deadlock(group.ins, f"barrier.cluster.wait waits for ever: {problem}", lane)
