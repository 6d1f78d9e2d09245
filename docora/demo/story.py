"""The whole story of Docora, told to a terminal while it happens. Everything in it is real.

A step that does not happen as told raises DemoFailed.
"""

import json
import random
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from docora.demo import push_hook
from docora.demo.bare import Changes
from docora.demo.githost import GitHost, HostedRepository
from docora.demo.mirror import digest_of
from docora.demo.receiver import ReceivedRequest, Receiver
from docora.demo.stage import DemoFailed, Docora, wait

_PAGES = 60
_LARGE_FILE_BYTES = 1_500_000


@dataclass(slots=True)
class Client:
    """One client app: its receiver, and what it got when it was registered."""

    name: str
    receiver: Receiver
    bearer: str = ""
    shown: int = 0
    """How many of its requests have been told."""

    def has(self, repository_id: str, files: dict[str, bytes]) -> bool:
        """Whether it holds just these files, has answered for all of them, and was told that this is all."""
        is_quiet = all(request.status is not None for request in self.receiver.requests[self.shown :])
        is_all = self.receiver.mirror.completed.get(repository_id) == digest_of(files)
        return is_quiet and is_all and self.receiver.files_of(repository_id) == files

    def news(self) -> list[ReceivedRequest]:
        """The requests that have been answered since the last time."""
        fresh = [request for request in self.receiver.requests[self.shown :] if request.status is not None]
        self.shown += len(fresh)
        return fresh


class Story:
    def __init__(self, console: Console, git_host: GitHost, docora: Docora, *, patience: float) -> None:
        self._console, self._git_host, self._docora = console, git_host, docora
        self._patience = patience
        self._chapter = 0
        self._repository_id = ""
        self._hook: dict[str, str] = {}

    def tell(self, search: Client, wiki: Client) -> None:
        started = time.monotonic()
        self._open()
        repository = self._host_a_repository()
        self._start_docora()
        self._register(search, wiki)
        self._watch(repository, search, wiki)
        self._give_hook(repository, search)
        self._change(repository, search, wiki)
        self._lose_one(repository, search, wiki)
        self._lose_the_last(search)
        self._close(started, search, wiki)

    def _open(self) -> None:
        self._console.print("[bold]Docora[/bold] watches git repositories for apps and pushes every change to them.")
        self._console.print("What follows is real, on this machine alone, and gone when it ends.")

    def _host_a_repository(self) -> HostedRepository:
        self._begin("A git host serves a repository")
        repository = self._git_host.create("acme/handbook")
        commit = repository.commit(_first_files(), "Write the handbook")
        self._say(f"{repository.url}  commit {commit[:10]}, {len(repository.files())} files")
        return repository

    def _start_docora(self) -> None:
        self._begin("Docora starts: web, workers, scheduler, SQLite and an embedded Valkey")
        started = time.monotonic()
        self._docora.start()
        with self._console.status("starting"):
            self._wait(self._docora.is_ready, "Docora was not ready")
        self._say(f"ready after {time.monotonic() - started:.1f} s")

    def _register(self, *clients: Client) -> None:
        self._begin("The operator registers two apps, each with the URL of its webhooks")
        for client in clients:
            receiver = client.receiver
            words = ("onboard", client.name, receiver.url, "--events", "sync_complete", "--json")
            answer = json.loads(self._docora.manage(*words))
            client.bearer, receiver.app_id = answer["bearer_token"], answer["app_id"]
            receiver.webhook_keys = (answer["webhook_key"],)
            self._say(f"{client.name:<8}{receiver.url}  gets a bearer token and a webhook key")

    def _watch(self, repository: HostedRepository, *clients: Client) -> None:
        self._begin("Both apps ask Docora to watch the repository; every file of it arrives, signed")
        for client in clients:
            self._call(client, "POST", "/api/repositories", 201, {"github_url": repository.url})
        self._show_progress(repository.files(), clients)
        news = [client.news() for client in clients]
        for client, requests in zip(clients, news, strict=True):
            self._say(f"{client.name:<8}{_completion(requests[-1])}")
        first = [request for request in news[0] if request.event == "create"]
        self._say(f"for example  {_excerpt(first)}")
        pieces = sum("chunk" in request.payload["file"] for request in first)
        fetches = self._git_host.count(repository, "fetch")
        self._say(f"Docora fetched {_times(fetches)} for both apps; the large binary file came in {pieces} pieces.")

    def _give_hook(self, repository: HostedRepository, client: Client) -> None:
        self._begin("The git host gets a hook: from now on it tells Docora of every push")
        self._hook = self._call(client, "POST", f"/api/repositories/{self._repository_id}/hook", 201)
        self._say(f"{repository.name} calls {self._hook['url']}, signed with the secret")

    def _push(
        self, repository: HostedRepository, changes: Changes, message: str, *, renames: dict[str, str] | None = None
    ) -> None:
        commit = repository.commit(changes, message, renames=renames)
        self._pushed_at = time.monotonic()
        status = push_hook.send(self._hook["url"], self._hook["secret"], path=repository.name, commit=commit)
        self._say(f"commit {commit[:10]}, hook → {status}")
        if status != 202:
            raise DemoFailed(f"the hook was answered with {status}")

    def _change(self, repository: HostedRepository, *clients: Client) -> None:
        self._begin("Somebody pushes an edit, a rename and a deletion; only these arrive")
        self._push(
            repository,
            {"README.md": "# Handbook, second edition\n", "docs/page-02.md": None},
            "Revise the handbook",
            renames={"docs/page-01.md": "docs/welcome.md"},
        )
        self._show_news(repository, clients)

    def _lose_one(self, repository: HostedRepository, search: Client, wiki: Client) -> None:
        self._begin(f"{wiki.name} stops watching; {search.name} is not disturbed")
        self._unwatch(wiki)
        self._push(repository, {"docs/news.md": "Only one app hears of this.\n"}, "Add news")
        self._show_news(repository, [search])
        if wiki.news():
            raise DemoFailed(f"{wiki.name} got a file after it had stopped watching")
        self._say(f"{wiki.name:<8}nothing")

    def _lose_the_last(self, search: Client) -> None:
        self._begin(f"{search.name} stops watching too; the clone that nobody needs is removed")
        self._say(f"clones on disk before: {', '.join(self._docora.clones()) or 'none'}")
        self._unwatch(search)
        self._wait(lambda: not self._docora.clones(), "the clone was not removed")
        self._say("clones on disk after:  none")

    def _close(self, started: float, *clients: Client) -> None:
        self._check_for_problems(clients)
        total = sum(len(client.receiver.requests) for client in clients)
        self._console.print(
            f"\n[bold green]Done[/bold green] in {time.monotonic() - started:.0f} s: {total} webhooks,"
            " each signature, SHA-256 and digest verified, nothing missed, nothing sent twice."
        )
        self._console.print("Now with your own repository: [bold]make run[/bold], then see README.md.")

    def _call(
        self, client: Client, method: str, path: str, expected: int, body: dict[str, str] | None = None
    ) -> dict[str, str]:
        answer = self._docora.call(method, path, client.bearer, body)
        self._repository_id = answer.body.get("repository_id", self._repository_id)
        self._say(f"{client.name:<8}{method} {path} → {answer.status} {answer.body.get('repository_id', '')}")
        if answer.status != expected:
            raise DemoFailed(f"{method} {path} answered {answer.status}: {answer.body.get('error')}")
        return answer.body

    def _unwatch(self, client: Client) -> None:
        self._call(client, "DELETE", f"/api/repositories/{self._repository_id}", 204)

    def _show_progress(self, files: dict[str, bytes], clients: Iterable[Client]) -> None:
        columns = (TextColumn("   {task.description:<8}"), BarColumn(30), MofNCompleteColumn(), TextColumn("files"))
        with Progress(*columns, console=self._console) as progress:
            bars = {client.name: progress.add_task(client.name, total=len(files)) for client in clients}

            def all_have_everything() -> bool:
                for client in clients:
                    progress.update(bars[client.name], completed=len(client.receiver.files_of(self._repository_id)))
                return all(client.has(self._repository_id, files) for client in clients)

            self._wait(all_have_everything, "the files did not all arrive", *clients)

    def _show_news(self, repository: HostedRepository, clients: Iterable[Client]) -> None:
        files = repository.files()

        def all_have_everything() -> bool:
            complete = all(client.has(self._repository_id, files) for client in clients)
            for client in clients:
                self._tell_news(client)
            return complete

        with self._console.status("waiting for the change"):
            self._wait(all_have_everything, "the change did not arrive", *clients)
        self._say(f"complete {time.monotonic() - self._pushed_at:.2f} s after the push")

    def _tell_news(self, client: Client) -> None:
        for request in client.news():
            is_file = request.event != "sync_complete"
            self._say(f"{client.name:<8}{f'{request.event:<8}{request.path}' if is_file else _completion(request)}")

    def _wait(self, condition: Callable[[], bool], complaint: str, *clients: Client) -> None:
        otherwise = f"{complaint} within {self._patience:g} s"
        for _ in wait(condition, until=self._patience, otherwise=otherwise, docora=self._docora):
            self._check_for_problems(clients)

    def _check_for_problems(self, clients: Iterable[Client]) -> None:
        for client in clients:
            if client.receiver.problems:
                raise DemoFailed(f"{client.name} noticed: {client.receiver.problems[0]}")

    def _begin(self, title: str) -> None:
        self._chapter += 1
        self._console.print(f"\n[bold]{self._chapter}. {escape(title)}[/bold]")

    def _say(self, line: str) -> None:
        self._console.print(f"   {escape(line.rstrip())}")


def _first_files() -> dict[str, str | bytes]:
    pages = {f"docs/page-{number:02}.md": f"# Page {number}\n" for number in range(1, _PAGES + 1)}
    film = random.Random(0).randbytes(_LARGE_FILE_BYTES)  # noqa: S311  any bytes that are not text
    return {"README.md": "# Handbook\n", "media/film.webm": film, **pages}


def _excerpt(requests: Iterable[ReceivedRequest]) -> str:
    """One webhook, short enough for a line."""
    request = next(request for request in requests if request.path == "README.md")
    shown = {"path": request.path, "content": request.payload["file"]["content"]}
    signature = request.headers["x-docora-signature"][:15]
    return f"POST /{request.event}  X-Docora-Signature: {signature}…  {json.dumps({'file': shown})[:-2]}, …"


def _completion(request: ReceivedRequest) -> str:
    """The receiver has compared the digest with that of its own files: a difference ends the demo."""
    payload = request.payload
    return f"sync_complete  {payload['files']} files, and the digest {payload['digest'][:12]}… is that of its own files"


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"
