"""Before an app is shown what a repository contains: may its own token read it now?"""

from repositories import access
from repositories.errors import AccessDenied
from repositories.models import App, Watch
from repositories.watches import watch_of


def readable_watch(app: App, repository_id: str) -> Watch:
    """The app's watch, its token accepted by the remote now or a short while ago."""
    watch = watch_of(app, repository_id)
    try:
        access.prove(watch)
    except AccessDenied as error:
        raise AccessDenied(f"The watch's token cannot read the repository: {error}", http_status=403) from None
    return watch
