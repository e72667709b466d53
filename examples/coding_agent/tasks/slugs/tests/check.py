import os

from slugs import slug

assert slug("Big  day!") == "big-day", slug("Big  day!")
assert slug("  a  b ") == "a-b" and slug("--x--") == "x" and slug("C3 & PO") == "c3-po"
assert not os.path.exists("old_slugs.py")
