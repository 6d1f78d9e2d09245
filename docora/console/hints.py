"""What a person can do about each machine code of an error."""

_HINTS = {
    "no-access": "The host refuses this token, or the repository is gone. Ask for a new token and change it here.",
    "ref-not-found": "The branch or tag is not there any more. The app must watch another one.",
    "host-unavailable": "The git host is down, slow or throttling. It is tried again by itself.",
    "clone-damaged": "The clone is being made anew. If it comes back, look at the disk.",
    "git-failed": "Read git's message. If it does not pass by itself, try Re-clone on the repository's page.",
    "delivery-failed": "The app's endpoint does not accept what is sent. Ping it, look at its deliveries, then retry.",
    "endpoint-disabled": "The app is disabled. Ping it, and enable it when it answers.",
    "too-large": "The repository is larger than this Docora allows.",
    "disk-full": "Free space on the volume with the clones, then reset the circuit.",
}
CODES = tuple(_HINTS)


def for_code(code: str) -> str:
    return _HINTS.get(code, "")
