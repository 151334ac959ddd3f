"""Promises, held against what happened. Pure: each check gets the facts and names what broke."""

import os
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence

from msgspec.structs import replace

from chaos.history import Asked, Event, Fault, Sample
from sublet.domain.job import Finished, Job, Outcome, Past
from sublet.policy import retry

_LONGEST = 300.0
"""Seconds that no program of the load lives for, once it has begun. A server may."""
_ENDING = 2.0
"""Seconds between a program's last line and the record of its end."""
_LATER = 30.0
"""Seconds for which a full disk may excuse an answer after there is room again."""
_WORLD = ("cannot be written", "cannot be used", "could not be started", "No space left")
"""How Sublet says that the disk is full."""
_ANY_LARGER = 1 << 40
_TERMINATED = 143
"""How a program ends that nobody wants any more."""


def attempts_overlap(events: Iterable[Event]) -> list[str]:
    """No two attempts of one job ran at once: the kernel's locks say so, and their own clocks."""
    found = [f"{one.name}: an attempt began while another ran: {one}" for one in events
             if one.kind == "overlap"]  # fmt: skip
    running: dict[str, Event] = {}
    ended = {(one.name, one.pid): one.at for one in events if one.kind == "end"}
    for one in events:
        if one.kind != "start":
            continue
        before = running.get(one.name)
        if before is not None and ended.get((before.name, before.pid), 0.0) > one.at:
            found.append(f"{one.name}: {one} began before {before} had ended")
        running[one.name] = one
    return found


def jobs_lost(asked: Iterable[Asked], jobs: dict[int, Job], reasons: dict[int, str]) -> list[str]:
    """Every job that was accepted has ended, or still waits and says why."""
    found = []
    for number in (number for one in asked for number in one.jobs):
        job = jobs.get(number)
        if job is None:
            found.append(f"#{number} was accepted, and the ledger does not know it")
        elif not isinstance(job.state, Finished) and not reasons.get(number):
            found.append(f"#{number} has not ended and does not say why: {job.state}")
    return found


def runs_again(events: Sequence[Event], jobs: dict[int, Job]) -> list[str]:
    """A job was started again only where `policy.retry` allows it."""
    found = []
    starts: dict[int, list[Event]] = defaultdict(list)
    for one in events:
        if one.kind == "start" and one.attempt[0]:
            starts[one.attempt[0]].append(one)
    for number, began in starts.items():
        job = jobs.get(number)
        if job is None or job.spec.is_pools:
            continue  # A worker of a pool runs several calls; those are counted by name.
        numbers = [one.attempt[1] for one in began]
        if len(set(numbers)) != len(numbers):
            found.append(f"#{number}: one attempt ran twice: {numbers}")
        known = {past.attempt for past in job.past} | {job.attempt}
        if unknown := set(numbers) - known:
            found.append(f"#{number}: the ledger knows nothing of attempts {sorted(unknown)}")
    for job in jobs.values():
        found += _allowed(job)
    names = [one.name for one in events if one.kind == "start" and not _of_queue(one, jobs)]
    found += [f"{name} ran {names.count(name)} times" for name in {*names} if names.count(name) > 1]
    return found


def _of_queue(start: Event, jobs: dict[int, Job]) -> bool:
    job = jobs.get(start.attempt[0])
    return job is not None and job.spec.client is None


def _allowed(job: Job) -> list[str]:
    failures = 0
    before: tuple[Past, ...] = ()
    found = []
    for past in job.past:
        then = replace(job, past=before, failures=failures, attempt=past.attempt)
        again = retry.again(then, past.outcome, _ANY_LARGER)
        if again is None:
            found.append(f"#{job.id} was started again after {past}")
        failures += again is not None and not again.forgiven
        before = (*before, past)
    return found


def over_capacity(samples: Iterable[Sample]) -> list[str]:
    """Leases never add up to more than their device has, nor those within a lease to more than
    its ceiling."""
    found = []
    for sample in samples:
        charged: dict[str, int] = defaultdict(int)
        lent: dict[int, int] = defaultdict(int)
        ceilings = {one.job: one.ceiling for one in sample.holders}
        for one in sample.holders:
            if one.within in ceilings:
                lent[one.within or 0] += one.charge
            else:
                charged[one.device] += one.charge
        for device, charge in charged.items():
            if charge > sample.capacity.get(device, charge):
                found.append(f"{sample.source}: {charge} of {sample.capacity[device]}: {sample}")
        for outer, charge in lent.items():
            if charge > ceilings[outer]:
                found.append(f"{sample.source}: {charge} within #{outer}: {sample}")
    return found


def out_of_order(
    events: Sequence[Event], asked: Iterable[Asked], jobs: dict[int, Job]
) -> list[str]:
    """Who is after another began after its end; no more of an array ran at once than it says."""
    found = []
    first: dict[int, float] = {}
    last: dict[int, float] = {}
    for one in events:
        if one.kind == "start" and one.attempt[0]:
            first.setdefault(one.attempt[0], one.at)
        if one.kind in ("start", "end") and one.attempt[0]:
            last[one.attempt[0]] = one.at
    ends = {(one.attempt): one.at for one in events if one.kind == "end"}
    for job in jobs.values():
        for other in (*job.spec.after, *job.spec.after_ok):
            if job.id in first and last.get(other, 0.0) > first[job.id]:
                found.append(f"#{job.id} began before #{other} had ended")
        for other in job.spec.after_ok:
            needed = jobs.get(other)
            state = needed.state if needed is not None else None
            well = isinstance(state, Finished) and state.outcome.code == 0
            if job.id in first and not well:
                found.append(f"#{job.id} ran though #{other} did not end well: {state}")
    for array in asked:
        if not array.at_once:
            continue
        spans = [
            (event.at, ends[event.attempt])
            for event in events
            if event.kind == "start" and event.attempt[0] in array.jobs and event.attempt in ends
        ]
        for began, _ in spans:
            at_once = sum(start <= began < end for start, end in spans)
            if at_once > array.at_once:
                found.append(f"{array.name}: {at_once} ran at once, not {array.at_once}")
    return found


class Codes:
    """Exit codes are true: those in the ledger, and those that commands ended with."""

    def __init__(
        self,
        events: Sequence[Event],
        faults: Sequence[Fault],
        jobs: dict[int, Job],
        cancelled: Collection[int] = (),
    ) -> None:
        self.lost = 0
        """Codes that nobody could see, where that is documented."""
        self._ends = {one.attempt: one for one in events if one.kind == "end" and one.attempt[0]}
        self._starts = {one.attempt: one for one in events if one.kind == "start"}
        self._by_name = {one.name: one for one in events if one.kind == "start"}
        self._end_names = {one.name: one for one in events if one.kind == "end"}
        self._kills = [one for one in faults if one.how == "kill"]
        kinds = {one.kind for one in faults if one.how == "kill"}
        self._nobody_saw = kinds >= {"keeper", "witness", "broker"}
        """Whether all were killed who could have seen an end."""
        self._full = [one for one in faults if one.how == "full disk"]
        self._jobs = jobs
        self._cancelled = cancelled

    def of_jobs(self) -> list[str]:
        """What the ledger says of each attempt."""
        found = []
        for job in self._jobs.values():
            if job.spec.is_pools or job.spec.in_process is not None:
                continue
            for past in job.past:
                found += self._outcome(job, past.attempt, past.outcome, "")
            if isinstance(job.state, Finished):
                found += self._outcome(job, job.attempt, job.state.outcome, job.state.how)
        return found

    def _outcome(self, job: Job, attempt: int, outcome: Outcome, how: str) -> list[str]:
        began, ended = self._starts.get((job.id, attempt)), self._ends.get((job.id, attempt))
        killed = began is not None and self._was_killed(began.pid, began.at)
        ending = f"{outcome.cause} {outcome.code} {outcome.message}"
        what = f"#{job.id}.{attempt} {job.spec.name}, {how}: {ending}"
        match outcome.cause:
            case "exited" if ended is not None and ended.facts["code"] == outcome.code:
                return []
            case "signalled" if killed or (ended is None and began is None):
                # Killed between the fork and the first line: our list has processes only that
                # have said that they run, and keepers and brokers.
                return []
            case "lost" if ended is not None and self._was_full(ended.at):
                self.lost += 1
                return []  # Its keeper could not write it down, and the broker was killed.
            case "lost" if self._nobody_saw and (killed or not how.startswith("warm")):
                self.lost += 1
                return []
            case "stopped" if self._was_left(job) or (job.spec.client and began is None):
                return []  # Who waited is told, and its own code is looked at.
            case "signalled" if self._was_left(job) and outcome.code == _TERMINATED:
                return []
            case "cancelled" if job.id in self._cancelled:
                return []
            case "dependency" if any(self._failed(other) for other in job.spec.after_ok):
                return []
        if job.spec.program.target.endswith((b"outer.py", b"job.py")):
            return [f"{what}: its program said {ended or began or 'nothing'}"]
        return []  # Engines and the like.

    def _was_left(self, job: Job) -> bool:
        """Whether nobody waits for it any more: its client was killed, or the lease around it has
        ended."""
        client = job.spec.client
        if client is None:
            return False
        since = client.start / os.sysconf("SC_CLK_TCK")
        return job.spec.within is not None or self._was_killed(client.pid, since - 1)

    def _failed(self, number: int) -> bool:
        job = self._jobs.get(number)
        return job is None or not isinstance(job.state, Finished) or job.state.outcome.code != 0

    def of_commands(self, asked: Iterable[Asked]) -> list[str]:
        """What each command ended with."""
        return [
            f"{one.kind} {one.name} ended with {one.code}, not {one.expected}: {one.said[-600:]}"
            for one in asked
            if not self._true(one)
        ]

    def _true(self, one: Asked) -> bool:
        if self._was_killed(one.pid, one.began, one.ended):
            return one.code in (-9, one.expected, 137)
        began, ended = self._by_name.get(one.name), self._end_names.get(one.name)
        if self._is_excused(one):
            return True
        match one.kind:
            case "run":
                if one.code == 255 and "nobody saw its exit code" in one.said:
                    self.lost += 1
                    killed = began is not None and self._was_killed(began.pid, began.at)
                    full = ended is not None and self._was_full(ended.at)
                    return full or (self._nobody_saw and (killed or "started cold" in one.said))
                # It dies as its program did. A worker that has not begun looks like its keeper.
                if self._was_killed(began.pid, began.at) if began else self._kills_during(one):
                    done = (one.expected,) if ended else ()  # It was just about to end.
                    return one.code in (-9, 137, *done)
                return one.code == one.expected and ended is not None
            case "hold" if one.code == 3:
                return True  # It has written down why.
            case "submit" if one.after_ok and "did not succeed" in one.said:
                return one.code == 2
            case "submit" | "pool" | "hold" | "caller":
                return one.code == one.expected
            case "wait":
                return one.code == self._worst(one)
            case "serve":
                # Nobody told it to end; but one whose engine or front end is killed does not start.
                early = ("The engine ended before it was ready", "A front end could not start")
                return self._kills_during(one) and any(text in one.said for text in early)
            case "act" | "resume":
                # Of one that has ended, or was not paused, it says so.
                return one.code == 0 or (one.code == 2 and "job" in one.said.lower())
        return False

    def _was_full(self, at: float) -> bool:
        return any(fault.at - _ENDING <= at <= fault.until for fault in self._full)

    def _kills_during(self, one: Asked) -> bool:
        return any(one.began <= kill.at <= one.ended for kill in self._kills)

    def _was_killed(self, pid: int, since: float, until: float | None = None) -> bool:
        """Whether the process of this number was killed while it lived. Where its end is not known:
        within _LONGEST; later the number may be another process's."""
        until = since + _LONGEST if until is None else until
        return any(kill.pid == pid and since <= kill.at <= until for kill in self._kills)

    def _worst(self, one: Asked) -> int:
        """What `sublet wait` ends with: the first code that is not 0."""
        states = [self._jobs[int(number)].state for number in one.name.split()]
        codes = [state.outcome.code for state in states if isinstance(state, Finished)]
        return next((code for code in codes if code), 0)

    def _is_excused(self, one: Asked) -> bool:
        """Whether it was refused because the disk was full, and said so."""
        full = any(
            one.began < fault.until + _LATER and one.ended > fault.at for fault in self._full
        )
        return full and one.code in (1, 2, 3, 126) and any(text in one.said for text in _WORLD)


def calls_wrong(events: Sequence[Event], faults: Sequence[Fault]) -> list[str]:
    """Calls of pools come back right, or with the reason; programs within a lease have their codes;
    callers of models get answers, or a clear refusal."""
    found = []
    killed = {one.pid for one in faults if one.how == "kill"}
    full = any(one.how == "full disk" for one in faults)
    began = {one.name: one for one in events if one.kind == "start"}
    for one in events:
        said = str(one.facts.get("said", ""))
        match one.kind, one.facts.get("how"):
            case "odd", _:
                found.append(f"{one.name}: {said}")
            case "calls", _:
                odd = {*one.facts["counts"]} - {"right", "UNAVAILABLE", "DEADLINE_EXCEEDED"}
                if odd:
                    found.append(f"{one.name}: {one.facts['counts']}")
            case "refused", _ if not (full and any(text in said for text in _WORLD)):
                found.append(f"{one.name} was refused: {said}")
            case "answer", ("wrong" | "odd") as how:
                found.append(f"{one.name}: {how}: {said}")
            case "answer", "died" if one.name in began and began[one.name].pid not in killed:
                found.append(f"{one.name} died, and nobody killed it: {said}")
            case "answer", "refused" if not (full and any(text in said for text in _WORLD)):
                found.append(f"{one.name} was refused: {said}")
            case "inner", _ if one.facts["code"] != one.facts["expected"]:
                excused = one.name in began and began[one.name].pid in killed
                excused |= one.facts["code"] == -9  # Its client.
                excused |= full and any(text in said for text in _WORLD)
                if not excused:
                    found.append(f"{one.name} ended with {one.facts['code']}: {said}")
    return found
