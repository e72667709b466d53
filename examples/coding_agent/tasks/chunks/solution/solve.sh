cat > chunks.py <<'END'
"""Split lists."""


def chunks(items: list, size: int) -> list[list]:
    if size < 1:
        raise ValueError(f"size is {size}, it must be at least 1")
    return [items[at : at + size] for at in range(0, len(items), size)]
END
