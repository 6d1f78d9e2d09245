"""May the app's own token read the repository now? Asked before an app is shown something of it."""

from contextlib import suppress

from docora.limits import seats
from repositories import access
from repositories.errors import AccessDenied, DocoraError
from repositories.models import App, Watch
from repositories.watches import watch_of


def readable_watch(app: App, repository_id: str) -> Watch:
    """The app's watch, its token accepted by the remote now or a short while ago."""
    watch = watch_of(app, repository_id)
    try:
        _prove(watch)
    except AccessDenied as error:
        raise AccessDenied(f"The watch's token cannot read the repository: {error}", http_status=403) from None
    return watch


def watch_to_show(app: App, repository_id: str) -> Watch:
    """The app's watch, after the remote was asked for a proof that has aged.

    The state of a watch is shown also when there is no proof: then it has what was known at the last one. A remote that
    could not be read at the last look is not asked, so that the answer does not wait for it.
    """
    watch = watch_of(app, repository_id)
    if access.is_proven(watch) or watch.repository.consecutive_failures:
        return watch
    with suppress(DocoraError):
        _prove(watch)
    return watch_of(app, repository_id)


def _prove(watch: Watch) -> None:
    if not access.is_proven(watch):
        with seats.calling(watch.app):
            access.prove(watch)
