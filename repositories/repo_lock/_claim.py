"""One caller's claim to a lock: acquire, wait, release. And all claims of a process."""

import logging
import os
import threading
import time

import redis
from redis.client import PubSub

from repositories.base import counters
from repositories.errors import Holder, LockLostError, LockTimeoutError, name_of
from repositories.repo_lock._held import HeldLock
from repositories.repo_lock._lease import Lease, Watchdog, clock
from repositories.repo_lock._server import TURN_SECONDS, YOUR_TURN, Busy, Granted, LockServer, Names, new_token, who_is

log = logging.getLogger("docora.repo_lock")

# Worth another try: the server is away, or has just become a replica.
_UNREACHABLE = (redis.ConnectionError, redis.TimeoutError, redis.ReadOnlyError)
_ANSWER_TIMEOUT = 2.0
# A waiter asks again this often, in case its wake-up was lost together with the connection.
_RECHECK = 2.0
# A waiter checks this often whether its process is shutting down.
_NAP = 0.1
# Ask this long after a key's expiry, so that the server has removed the key.
_AFTER_EXPIRY = 0.005


class Process:
    """The locks of one process. A forked child starts with an empty one."""

    def __init__(self) -> None:
        self.claims: dict[Claim, None] = {}
        self.watchdog = Watchdog()
        self.stopping = False
        self._pid = os.getpid()
        self._server: LockServer | None = None

    @property
    def server(self) -> LockServer:
        if self._server is None:
            self._server = LockServer(timeout=_ANSWER_TIMEOUT)
        return self._server

    @property
    def is_this_one(self) -> bool:
        return self._pid == os.getpid()

    def held_by(self, job_id: str) -> dict[str, HeldLock]:
        """The locks that this thread holds for that job, by key."""
        thread = threading.get_ident()
        return {c.key: c.held for c in tuple(self.claims) if c.held and c.job_id == job_id and c.thread == thread}

    def close(self) -> None:
        self.stopping = True
        if self._server:
            self._server.close()


class Claim:
    def __init__(self, process: Process, *, key: str, job_id: str, ttl: float) -> None:
        self.key = key
        self.job_id = job_id
        self.thread = threading.get_ident()
        self.held: HeldLock | None = None
        self._process = process
        self._ttl = ttl
        self._names = Names(key)
        self._token = new_token(job_id)
        self._asked = 0.0
        self._has_asked_to_leave = False
        self._ahead: Holder | None = None
        self._line: PubSub | None = None
        self._waited: float | None = None
        self._was_called = False

    def acquire(self, wait: float) -> HeldLock:
        # Registered before anything is sent, so that `abandon` can undo an acquire that is interrupted anywhere.
        self._process.claims[self] = None
        granted = self._take_at_once(wait) or self._wait(clock(), wait)
        lease = Lease(key=self.key, job_id=self.job_id, ttl=self._ttl, asked=self._asked, renew=self._renew)
        me = who_is(self._token, time.time())
        self.held = HeldLock(key=self.key, fence=granted.fence, me=me, lease=lease)
        self._process.watchdog.keep(lease)
        log.debug("Job %s acquired lock on %s", self.job_id, self.key)
        return self.held

    def release(self) -> None:
        """After work that succeeded. Raises LockLostError if the lock had been lost before."""
        if self.abandon():
            raise LockLostError(self.key)

    def abandon(self) -> bool:
        """Give up the lock, or the place in the queue. May be called again. True if the lock had been lost."""
        if self not in self._process.claims or not self._process.is_this_one:
            return False
        if self.held:
            self._process.watchdog.forget(self.held.lease)
            self.held.remove_flock()
        lost = self._leave()
        self._hang_up()
        self._process.claims.pop(self, None)
        if self.held and lost:
            self.held.lease.lose()
        elif self.held:
            log.debug("Job %s released lock on %s", self.job_id, self.key)
        self._count(lost)
        return lost

    def _count(self, lost: bool) -> None:
        """After the release, so that the next holder does not wait for it; nothing for a lock that was free."""
        counts, lock = counters.Counts(), _kind_of(self.key)
        if self._waited:
            counts.observe(counters.LOCK_WAIT_SECONDS, self._waited, lock)
        if self._waited is not None:
            counts.add(counters.LOCK_WAITS, lock, self._how_the_wait_ended())
        if self.held and lost:
            counts.add(counters.LOCKS_LOST, lock)
        counts.write()

    def _how_the_wait_ended(self) -> str:
        if self.held:
            return "handed-over" if self._was_called else "found-free"
        return "gave-up" if self._waited else "did-not-wait"

    def _leave(self) -> bool:
        # The answer is known, and asking would only be a wait if the server is gone.
        if self.held and self.held.lost:
            return True
        for _ in range(2 if self.held else 1):
            first_try, self._has_asked_to_leave = not self._has_asked_to_leave, True
            try:
                was_mine = self._process.server.leave(self._names, self._token)
            except _UNREACHABLE as error:
                reason = error
            else:
                # On a second try, "not yours" may mean that the first one succeeded and its answer was lost.
                return bool(self.held) and not was_mine and first_try
        log.warning("Job %s could not release the lock on %s, it will expire: %s", self.job_id, self.key, reason)
        return False

    def _renew(self) -> bool:
        return self._process.server.renew(self._names, self._token, ttl=self._ttl)

    def _ask(self, wait: float) -> Granted | Busy:
        self._asked = clock()
        answer = self._process.server.acquire(self._names, self._token, ttl=self._ttl, wait=wait)
        if isinstance(answer, Busy):
            self._ahead = answer.ahead
        return answer

    def _take_at_once(self, wait: float) -> Granted | None:
        try:
            answer = self._ask(0)
        except _UNREACHABLE:
            if not wait:
                raise
            return None
        if isinstance(answer, Granted):
            return answer
        if not wait:
            self._waited = 0.0
            log.warning("Job %s did not wait for lock on %s, held by %s", self.job_id, self.key, name_of(self._ahead))
            raise LockTimeoutError(self.key, self._ahead, 0.0)
        return None

    def _wait(self, started: float, wait: float) -> Granted:
        log.warning("Job %s waiting for lock on %s, held by %s", self.job_id, self.key, name_of(self._ahead))
        try:
            return self._wait_in_line(started, wait)
        finally:
            self._waited = clock() - started

    def _wait_in_line(self, started: float, wait: float) -> Granted:
        while True:
            try:
                # Closed at the release: closing takes time, and the work inside of the lock is waiting.
                self._line = self._process.server.subscribe(self._names, self._token)
                return self._stand_in_line(self._line, started, wait)
            except _UNREACHABLE as error:
                self._hang_up()
                self._go_on_waiting(started, wait, error)
                time.sleep(_NAP)

    def _hang_up(self) -> None:
        if self._line:
            self._line.close()
            self._line = None

    def _stand_in_line(self, line: PubSub, started: float, wait: float) -> Granted:
        end = started + wait
        while isinstance(answer := self._ask(max(0.0, end - clock())), Busy):
            self._go_on_waiting(started, wait)
            self._process.watchdog.start()  # now, while we wait anyway, and not after the hand-over
            expiry = _RECHECK if answer.expires_in is None else answer.expires_in + _AFTER_EXPIRY
            self._listen(line, until=min(end, clock() + min(_RECHECK, expiry)))
        return answer

    def _go_on_waiting(self, started: float, wait: float, error: Exception | None = None) -> None:
        waited = clock() - started
        if self._process.stopping:
            log.warning("Job %s stopped waiting for lock on %s: shutting down", self.job_id, self.key)
        elif waited >= wait:
            log.error(
                "Job %s timed out after %.1f s waiting for lock on %s, held by %s",
                self.job_id,
                waited,
                self.key,
                name_of(self._ahead),
            )
        else:
            return
        raise LockTimeoutError(self.key, self._ahead, waited) from error

    def _listen(self, line: PubSub, until: float) -> None:
        """Return when it is this waiter's turn, or time to ask again."""
        while (left := until - clock()) > 0 and not self._process.stopping:
            message = line.get_message(timeout=min(left, _NAP))
            if message and message["data"] == YOUR_TURN:
                self._was_called = True
                return
            if message:
                # The waiter ahead has the turn now. If it is frozen, our turn comes when its turn expires.
                until = min(until, clock() + TURN_SECONDS + _AFTER_EXPIRY)


def _kind_of(key: str) -> str:
    """A few words for all keys; a clone's key has no colon before its first slash."""
    kind = key.partition(":")[0]
    return kind if kind in {"delivery", "fetch", "janitor"} else "repository"
