"""A push arrives by its hook, also while every ordinary worker is busy: with everything real."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from docora.demo import push_hook
from docora.demo.githost import GitFault
from docora.demo.receiver import ReceiverFault
from tests.support.git_cast import Scene, scene
from tests.support.service import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

NEVER = "86400"


@pytest.fixture
def play(tmp_path: Path) -> Iterator[Scene]:
    """No planned look comes between: what arrives has come by a hook."""
    pauses = {"RESCAN_INTERVAL": NEVER, "DOCORA_MIN_RESCAN_INTERVAL": NEVER}
    with scene(tmp_path, apps=3, **pauses) as play:
        yield play


def test_a_push_arrives_by_its_hook_also_while_every_ordinary_worker_is_busy(play: Scene) -> None:
    quick, hanging, first = play.apps
    handbook = play.host.create("acme/handbook")
    handbook.commit({"README.md": "first"})
    slow_site, huge = play.host.create("acme/site"), play.host.create("acme/huge")
    for repository in (slow_site, huge):
        repository.commit({"README.md": "first"})
    handbook_id = quick.watch(handbook.url).json()["repository_id"]
    quick.wait_until_synced(handbook_id)
    hook = quick.call("POST", f"/api/repositories/{handbook_id}/hook").json()

    def push(text: str) -> None:
        commit = handbook.commit({"README.md": text})
        assert push_hook.send(hook["url"], hook["secret"], path=handbook.name, commit=commit) == 202
        arrived = {"README.md": text.encode()}
        wait_until(lambda: quick.receiver.files_of(handbook_id) == arrived, f"{text} arrives")

    push("second")
    # The one worker for snapshots hangs in the middle of a fetch, the one for deliveries at an endpoint.
    fetch = play.host.faults.put(GitFault(repository=huge, kinds=["fetch"], hang=True))
    endpoint = hanging.receiver.faults.put(ReceiverFault(hang=True))
    with fetch, endpoint:
        hanging_id = hanging.watch(slow_site.url).json()["repository_id"]
        wait_until(lambda: hanging.receiver.requests, "a delivery hangs")
        huge_id = first.watch(huge.url).json()["repository_id"]
        wait_until(lambda: play.host.count(huge, "fetch"), "a fetch hangs")
        push("third")
        assert first.status(huge_id) != "synced"
        assert hanging.status(hanging_id) != "synced"
    first.wait_until_synced(huge_id)
    state = quick.get(f"/api/repositories/{handbook_id}/hook")
    assert (state["accepted"], state["refused"]) == (2, 0)
    assert quick.receiver.problems == []
