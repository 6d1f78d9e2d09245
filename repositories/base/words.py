"""Numbers as people read them."""


def number(count: int) -> str:
    return f"{count:,}"


def plural(count: int, one: str, many: str = "") -> str:
    return f"{number(count)} {one if count == 1 else many or one + 's'}"
