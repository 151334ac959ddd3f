"""The broker's loop: hear, decide, commit, act.

    reactor.run_once ──▶ events ──▶ state.apply ──▶ plan ──▶ state.apply ──▶ commit ──▶ effects

Events come from clients (`requests`) and from the backend (`attempts`). Effects of a decision
(accepting, granting, launching) wait until it is on disk: "accepted" means committed, and no worker
is launched whose lease a later broker would not find.
"""

import contextlib
import sqlite3
from collections.abc import Collection

from sublet.backends.backend import Backend
from sublet.broker import event_log, log, takeover
from sublet.broker.attempts import Attempts
from sublet.broker.dependencies import Dependencies
from sublet.broker.device_usage import DeviceUsage
from sublet.broker.dry_runs import DryRuns
from sublet.broker.effects import (
    Answer,
    Confirmation,
    ConfirmQueued,
    Effect,
    ForgetAttempt,
    Launch,
    Learn,
    Notify,
    NotifyUser,
    RaiseLimit,
    SettleNested,
)
from sublet.broker.elastic_leases import ElasticLeases
from sublet.broker.gang_watch import GangWatch
from sublet.broker.gangs import Gangs
from sublet.broker.job_clients import JobClients
from sublet.broker.job_control import JobControl
from sublet.broker.ledger import Ledger
from sublet.broker.nested_leases import NestedLeases
from sublet.broker.notifications import Notifications
from sublet.broker.planner import Planner
from sublet.broker.ports import Ports
from sublet.broker.queue import Queue
from sublet.broker.requests import Requests
from sublet.broker.size_estimates import SizeEstimator
from sublet.broker.snapshot_feed import SnapshotFeed
from sublet.broker.snapshots import RecentlyEnded, Snapshots
from sublet.broker.starts import Starts
from sublet.broker.subscriptions import Subscriptions
from sublet.broker.unit_of_work import Committed, Undo, UnitOfWork
from sublet.broker.usage_recorder import UsageRecorder
from sublet.clock import Clock
from sublet.devices import Probe
from sublet.errors import WorldError
from sublet.home import Home
from sublet.reactor import Reactor

_RETRY_COMMIT = 1.0
_CHECKPOINT = 1.0
_LOOK_AGAIN = 2.0
"""Seconds between looks at strangers' memory while somebody waits."""


class Broker:
    """All parts of the broker and the loop that drives them, in one thread."""

    def __init__(
        self,
        reactor: Reactor,
        home: Home,
        ledger: Ledger,
        probe: Probe,
        clock: Clock,
        backend: Backend,
    ) -> None:
        self.reactor = reactor
        self.home = home
        self.clock = clock
        self.backend = backend
        self.work = UnitOfWork(ledger)
        self.state = self.work.state
        self.clients = JobClients()
        self.subscriptions = Subscriptions()
        self.nested_leases = NestedLeases(self.state, home.runs)
        devices = {one.id: one for one in probe.devices()}
        self.estimator = SizeEstimator(
            ledger, devices, backend.nursery_of, backend.reconsider_nurseries, probe.left_out
        )
        self.usage = usage = DeviceUsage(
            probe, self.state, backend, self.nested_leases, self.estimator, clock
        )
        recently_ended = RecentlyEnded(self.work)
        self.recorder = UsageRecorder(self.work, usage, clock, reactor, home)
        self.notifications = Notifications(self.work, home)
        self.control = JobControl(
            self.work,
            backend,
            self.clients,
            self.nested_leases,
            usage,
            self.estimator,
            clock,
            reactor,
            (recently_ended.note, self.recorder.finished, self.notifications.note),
        )
        ports = Ports()
        self.gang_watch = GangWatch(self.state, clock, reactor, home.logs, self._tell)
        self.gangs = Gangs(self.work, self.control, ports, self.gang_watch, clock, reactor)
        self.attempts = Attempts(
            self.work,
            backend,
            self.control,
            self.clients,
            usage,
            self.nested_leases,
            self.estimator,
            self.gangs,
            clock,
            reactor,
            home,
        )
        backend.report_to(self.attempts)
        self.dependencies = Dependencies(self.work)
        self._starts = Starts(
            self.work,
            backend,
            self.attempts,
            self.clients,
            usage,
            self.nested_leases,
            ports,
            clock,
            reactor,
        )
        self.queue = Queue(
            self.state, self.estimator, self.dependencies, self._starts.unready, clock.now
        )
        self.planner = Planner(
            self.work,
            self.queue,
            usage,
            self.nested_leases,
            self.dependencies,
            self.control,
            self.clients,
            ports,
            clock,
        )
        lacking: dict[int, str] = {}
        self.snapshots = Snapshots(
            self.work,
            usage,
            self.queue,
            backend,
            self.estimator,
            clock,
            home,
            recently_ended,
            lacking,
            self.gang_watch.findings,
        )
        self.feed = SnapshotFeed(self.snapshots, self.work, clock, reactor)
        self.requests = Requests(
            self.work,
            self.control,
            self.clients,
            usage,
            self.estimator,
            self.dependencies,
            self.snapshots,
            self.subscriptions,
            self.feed,
            DryRuns(self.work, self.queue, usage, self.estimator, clock),
            self.recorder,
            backend,
            clock,
            home,
        )
        self.elastic_leases = ElasticLeases(
            self.work,
            usage,
            self.nested_leases,
            self.control,
            self.clients,
            clock,
            reactor,
            home.runs,
            lacking,
        )
        takeover.take_over(self.work, backend, self.control, usage, self.queue, reactor)
        self.gangs.adopt()
        self.gang_watch.adopt()
        self.nested_leases.adopt()
        self.elastic_leases.adopt()
        self.recorder.adopt()
        backend.sweep({job.attempt_id for job in self.state.jobs()})
        takeover.prune(self.work, home)

    def run(self) -> None:
        """Run until somebody says `down`."""
        self.settle()
        while not self.control.ending:
            self.reactor.run_once()
            self.settle()
        self.close()

    def end(self) -> None:
        """Have `run` return after this turn."""
        self.control.ending = True

    def close(self) -> None:
        """End the backend's warm processes and the ledger; workers and keepers go on. What killed
        ones have left goes."""
        self.backend.sweep({job.attempt_id for job in self.state.jobs()})
        self.backend.close()
        self.gangs.close()
        self.work.ledger.close()

    def settle(self) -> None:
        """After each turn: plan, commit, perform; and again, as long as that brings news."""
        work = self.work
        while work.pending:
            self.gangs.note(work.uncommitted())
            # What was measured is committed first: the next of the same program is sized by it.
            if work.changed and not work.unlearned:
                work.changed = False
                self.elastic_leases.plan(self.queue.wait_queue)
                if self.planner.due and not self.control.closing:
                    self.planner.follow(self.planner.plan())
            changed = work.uncommitted()
            if not self.commit():
                self.reactor.call_later(_RETRY_COMMIT, self._look_again)
                break
            self._tell(changed)
            self.gang_watch.note(changed)
            self.recorder.note(changed)
            self.elastic_leases.note(changed)
            self.attempts.hold_opportunistic()
        self._schedule_chores()

    def _tell(self, changed: Collection[int]) -> None:
        """Tell those who watch these jobs how they are now."""
        self.subscriptions.publish(changed, self.snapshots.row)
        self.feed.note(changed)

    def commit(self) -> bool:
        """Commit what is new and perform what follows; False if the disk does not take it."""
        result = self.work.commit()
        if isinstance(result, Committed):
            if log.is_json():
                event_log.write(result.changes)
            for effect in result.effects:
                self._perform(effect)
            for confirmation in result.confirmations:
                confirmation.connection.reply(confirmation.done)
            return True
        self._refuse(result.undone, result.error)
        for confirmation in result.confirmations:
            confirmation.connection.refuse(self._unwritten(confirmation, result.error))
        return False

    def _perform(self, effect: Effect) -> None:
        match effect:
            case Answer(connection=connection, message=message):
                connection.reply(message)
            case Notify(job=job, message=message):
                self.clients.send(job, message)
            case ConfirmQueued(jobs=queued):
                submitter = self.clients.take_submitter(queued.jobs[-1])
                if submitter is not None:
                    submitter.reply(queued)
            case Launch(job=job):
                self._starts.start(job)
            case SettleNested(job=outer):
                self.nested_leases.settle(outer)
            case RaiseLimit():
                self.elastic_leases.send(effect)
            case ForgetAttempt(attempt_id=attempt_id):
                self.backend.forget(attempt_id)
            case Learn(job=learned):
                self.queue.revise(self.estimator.measured(learned))
                self.work.changed = True
            case NotifyUser(job=finished):
                self.notifications.send(finished)

    def _schedule_chores(self) -> None:
        """Set timers for what is due later."""
        if self.queue.behind and not self.control.closing:
            self.reactor.call_once(0.0, self._revise)
        if self.state.waits or self.elastic_leases.waits:
            self.reactor.call_once(_LOOK_AGAIN, self._look_again)
        if self.elastic_leases.watches:
            self.reactor.call_once(_LOOK_AGAIN, self._trim)
        if self.work.ledger.in_journal:
            self.reactor.call_once(_CHECKPOINT, self._checkpoint)

    def _revise(self) -> None:
        """Go on with what the last plan has left for later; clients are heard in between."""
        self.work.changed = True

    def _look_again(self) -> None:
        """Plan again: strangers come and go without telling us."""
        self.work.changed = True

    def _trim(self) -> None:
        """Give the room that settled programs do not need to those that wait."""
        self.elastic_leases.trim(self.state.waits)

    def _checkpoint(self) -> None:
        """Keep what was committed in the ledger's journal for a moment only, and so the
        environments of jobs that have ended."""
        with contextlib.suppress(sqlite3.Error):  # The disk is full; tried again after a turn.
            self.work.ledger.checkpoint()

    def _refuse(self, undone: list[Undo], error: sqlite3.Error) -> None:
        """Tell clients whose jobs could not be committed that these were not accepted."""
        refusal = WorldError(
            f"The ledger cannot be written: {error}.",
            f"Free some space for {self.home.path}; nothing was started.",
        )
        for before, after in undone:
            if before is None:
                connection = self.clients.part(after.id) or self.clients.take_submitter(after.id)
                if connection is not None:
                    connection.job = None
                    connection.refuse(refusal)

    def _unwritten(self, confirmation: Confirmation, error: sqlite3.Error) -> WorldError:
        """The action was done all the same: it may be the way to have some space again."""
        return WorldError(
            f"{'; '.join(confirmation.done.said)}. But the ledger cannot be written: {error}.",
            f"Free some space for {self.home.path}: a broker that ends before it is written "
            "takes it for not done.",
        )
