import subprocess
import sys

from median import median

values = [3, 1, 2]
assert median(values) == 2 and values == [3, 1, 2]
assert median([1, 2, 3, 4]) == 2.5 and median([7]) == 7
try:
    median([])
except ValueError:
    pass
else:
    raise AssertionError("an empty list was not refused")
assert subprocess.check_output([sys.executable, "report.py"], text=True) == "median 2.5\n"
