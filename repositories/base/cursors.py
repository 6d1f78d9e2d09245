"""Where a client's reading stands: a few whole numbers and a mark of what they count, as opaque text."""

import base64
import binascii
import json

from repositories.errors import InvalidCursor

_LARGEST = 2**63 - 1


def encode(mark: str, *numbers: int) -> str:
    return base64.urlsafe_b64encode(json.dumps([mark, *numbers]).encode()).decode().rstrip("=")


def decode(text: str, *, count: int) -> tuple[str, tuple[int, ...]]:
    try:
        mark, *numbers = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    except (binascii.Error, ValueError, TypeError, RecursionError):
        raise InvalidCursor from None
    if not isinstance(mark, str) or len(numbers) != count or not all(map(_is_whole, numbers)):
        raise InvalidCursor
    return mark, tuple(numbers)


def _is_whole(number: object) -> bool:
    return type(number) is int and 0 <= number <= _LARGEST
