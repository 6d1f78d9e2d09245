"""Before an app is shown what a repository contains: may its own token read it now?"""

from repositories import access
from repositories.errors import AccessDenied, DocoraError
from repositories.models import App, Watch
from repositories.watches import watch_of


class AccessRefused(DocoraError):
    code = "no-access"


def readable_watch(app: App, repository_id: str) -> Watch:
    """The app's watch, its token accepted by the remote now or a short while ago."""
    watch = watch_of(app, repository_id)
    try:
        access.prove(watch)
    except AccessDenied as error:
        raise AccessRefused(f"The watch's token cannot read the repository: {error}") from None
    return watch
