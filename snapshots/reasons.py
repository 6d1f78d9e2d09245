"""Why a repository cannot be read, in words that every watching app may see.

By the stable code of the error: git's own words may name hosts, accounts and tokens of another app, and stay with the
operator.
"""

_REASONS = {
    "clone-damaged": "the copy of it is damaged and is being made anew",
    "disk-full": "there is no room for it at the moment",
    "forbidden-address": "its host has an address that may not be dialled",
    "host-unavailable": "its host cannot be reached or does not answer",
    "invalid-url": "its host may not be watched any more",
    "moved": "it has moved to where it cannot be followed",
    "ref-not-found": "the branch or tag is not there any more",
    "too-large": "it is larger than allowed",
}


def reason_of(code: str) -> str:
    return _REASONS.get(code, "git reported an error")


def sentence_of(code: str) -> str:
    return f"The repository could not be read: {reason_of(code)}."
