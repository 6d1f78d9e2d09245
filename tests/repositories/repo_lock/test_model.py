"""Random lives of several clients against a model of the lock: the scripts, and nothing else.

The model knows who listens, who stands in line and who was called; the server has to agree after every step.
"""

import time

import fakeredis
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from repositories.base import connections
from repositories.repo_lock._server import YOUR_TURN, Granted, LockServer, Names, new_token

NAMES = Names("owner/repo")
CLIENTS = st.integers(min_value=0, max_value=3)
TTL = 60


class Client:
    """A process that asks for the lock: it listens from before it queues until it leaves or dies."""

    def __init__(self, server: LockServer, number: int) -> None:
        self.token = new_token(f"client-{number}")
        self._line = server.subscribe(NAMES, self.token)
        self.asked = False

    def was_called(self) -> bool:
        messages = iter(lambda: self._line.get_message(timeout=0), None)
        return any(message["data"] == YOUR_TURN for message in messages)

    def stop_listening(self) -> None:
        self._line.close()


class LockModel(RuleBasedStateMachine):
    @initialize()
    def start(self) -> None:
        fake = fakeredis.FakeServer()
        self.redis = fakeredis.FakeRedis(server=fake, decode_responses=True)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(connections, "connect", lambda timeout: fakeredis.FakeRedis(server=fake))
            self.server = LockServer(timeout=2)
        self.clients: dict[int, Client] = {}
        self.holder: str | None = None
        self.turn: str | None = None
        self.line: list[str] = []
        self.alive: set[str] = set()
        self.fence = 0

    def client(self, number: int) -> Client:
        if number not in self.clients:
            self.clients[number] = Client(self.server, number)
            self.alive.add(self.clients[number].token)
        return self.clients[number]

    def call_next(self) -> None:
        """The turn goes to the oldest that listens."""
        self.turn = None
        while self.line:
            token = self.line.pop(0)
            if token in self.alive:
                self.turn = token
                return

    @rule(number=CLIENTS, waits=st.booleans())
    def ask(self, number: int, waits: bool) -> None:
        me = self.client(number).token
        answer = self.server.acquire(NAMES, me, ttl=TTL, wait=TTL if waits else 0)
        if self.holder is None and self.turn is None:
            self.call_next()
        if self.holder == me:
            assert answer == Granted(fence=self.fence)
        elif self.holder is None and self.turn in (None, me):
            assert isinstance(answer, Granted)
            assert answer.fence > self.fence
            self.holder, self.turn, self.fence = me, None, answer.fence
        else:
            assert not isinstance(answer, Granted), "two holders, or somebody barged in"
            assert answer.ahead.job_id in (self.holder or self.turn or "")
            if waits and me not in self.line:
                self.line.append(me)

    @rule(number=CLIENTS)
    def stand_in_line(self, number: int) -> None:
        self.ask(number, waits=True)

    @rule(number=CLIENTS)
    def leave(self, number: int) -> None:
        client = self.client(number)
        held = self.server.leave(NAMES, client.token)
        assert held == (self.holder == client.token)
        self._is_gone(client.token)
        client.stop_listening()
        self.alive.discard(client.token)
        del self.clients[number]

    @rule(number=CLIENTS)
    def leave_twice(self, number: int) -> None:
        """As when the answer to the first was lost; the one called by it may even have come already."""
        client = self.client(number)
        self.server.leave(NAMES, client.token)
        self._is_gone(client.token)
        assert not self.server.leave(NAMES, client.token)
        self._is_gone(client.token)

    def _is_gone(self, token: str) -> None:
        self.line = [other for other in self.line if other != token]
        if self.turn == token:
            self.turn = None
        if self.holder == token:
            self.holder = None
        if self.holder is None and self.turn is None:
            self.call_next()

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def crash(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.clients)))
        client = self.clients.pop(number)
        client.stop_listening()
        self.alive.discard(client.token)

    @rule(number=CLIENTS)
    def renew(self, number: int) -> None:
        me = self.client(number).token
        assert self.server.renew(NAMES, me, ttl=TTL) == (self.holder == me)

    @rule(disaster=st.sampled_from(["lock_expires", "turn_expires", "server_loses_everything"]))
    def meet(self, disaster: str) -> None:
        """One rule for all, so that most steps are those of ordinary life."""
        getattr(self, disaster)()

    def lock_expires(self) -> None:
        self.redis.delete(NAMES.lock)
        self.holder = None

    def turn_expires(self) -> None:
        self.redis.delete(f"{NAMES.lock}:turn")
        self.turn = None

    def server_loses_everything(self) -> None:
        time.sleep(0.002)  # as every restart takes; fences follow a clock of milliseconds
        self.redis.flushall()
        self.holder, self.turn, self.line = None, None, []

    @rule()
    def drain(self) -> None:
        """Nobody starves: if each holder leaves, all who listen are called in the order of the line, and get it."""
        if self.turn not in self.alive:
            self.turn_expires()
        if self.holder:
            self.server.leave(NAMES, self.holder)
            self._is_gone(self.holder)
        waiting = [token for token in (self.turn, *self.line) if token in self.alive]
        listeners = {client.token: client for client in self.clients.values()}
        for place, token in enumerate(waiting):
            assert place == 0 or listeners[token].was_called()
            answer = self.server.acquire(NAMES, token, ttl=TTL, wait=TTL)
            assert isinstance(answer, Granted)
            self.fence = answer.fence
            self._forget_calls(listeners)
            assert self.server.leave(NAMES, token)
        self.holder, self.turn = None, None
        self.line = [token for token in self.line if token not in self.alive] if not waiting else []

    def _forget_calls(self, listeners: dict[str, Client]) -> None:
        for client in listeners.values():
            client.was_called()

    @invariant()
    def the_server_agrees(self) -> None:
        if not hasattr(self, "redis"):
            return
        assert self.redis.hget(NAMES.lock, "token") == self.holder
        assert self.redis.get(f"{NAMES.lock}:turn") == self.turn
        assert self.redis.lrange(NAMES.queue, 0, -1) == self.line

    @invariant()
    def nothing_stays_for_ever(self) -> None:
        if hasattr(self, "redis"):
            assert all(self.redis.pttl(key) > 0 for key in self.redis.scan_iter())

    def teardown(self) -> None:
        for client in getattr(self, "clients", {}).values():
            self.server.leave(NAMES, client.token)
            client.stop_listening()


LockModel.TestCase.settings = settings(
    max_examples=150,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    database=None,
)
TestLockModel = LockModel.TestCase
