"""Split lists."""


def chunks(items: list, size: int) -> list[list]:
    found = []
    while len(items) >= size:
        found.append(items[:size])
        items = items[size:]
    return found
