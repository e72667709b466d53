from chunks import chunks

assert chunks([1, 2, 3], 2) == [[1, 2], [3]]
assert chunks([1, 2], 2) == [[1, 2]] and chunks([], 2) == []
for size in (0, -1):
    try:
        chunks([1], size)
    except ValueError:
        continue
    raise AssertionError(f"size {size} was not refused")
