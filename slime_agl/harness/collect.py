"""What an agent changed in its work folder, carried from its sandbox into another.

Files are compared by name, inode and time of change, which the agent cannot set back; nothing here runs git, which
runs what a repository's settings name. History (`.git`) stays behind. What the agent writes over is its own work: names
and contents that arrive are used only inside the next sandbox.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass

from slime_agl.errors import SandboxError
from slime_agl.harness.boxes import Box, checked, rooted

NOTES = "/slime_agl/notes"
MOST_BYTES = 64 * 2**20
SECONDS = 300.0
SHOWN_DIFF = 200_000

_LIST = (
    r"LC_ALL=C find . -name .git -prune -o \( -type f -o -type l \) -exec ls -id {} + | sed 's/^ *//' | LC_ALL=C sort"
)


@dataclass(frozen=True, slots=True)
class Work:
    """Changes of a work folder. archive: gzipped tar of changed files. gone: removed paths, one per line.

    changed: number of both. too_large: there is more than is carried, and `archive` is empty.
    """

    archive: bytes
    gone: str
    changed: int
    too_large: bool = False


async def mark(box: Box, workdir: str) -> None:
    """Remember the work folder as it is. Raises SandboxError."""
    # The pause keeps the first change of the agent apart from ours: times have the resolution of a clock tick.
    script = f"""set -e
mkdir -p {rooted(NOTES)}
cd {rooted(workdir)}
{_LIST} > {rooted(NOTES)}/before
touch {rooted(NOTES)}/began
sleep 0.02"""
    await checked(box, script, SECONDS, "the list of files")


async def collect(box: Box, workdir: str) -> Work:
    """Read what has changed since `mark`. Raises SandboxError."""
    script = f"""set -e
notes={rooted(NOTES)}
cd {rooted(workdir)}
find . -name .git -prune -o ! -type l ! -perm -u+r -exec chmod u+rwX {{}} + 2>/dev/null || true
{_LIST} > "$notes/after"
cut -d' ' -f2- "$notes/before" | LC_ALL=C sort > "$notes/names_before"
cut -d' ' -f2- "$notes/after" | LC_ALL=C sort > "$notes/names_after"
LC_ALL=C comm -23 "$notes/names_before" "$notes/names_after" > "$notes/gone"
{{ LC_ALL=C comm -13 "$notes/before" "$notes/after" | cut -d' ' -f2-
find . -name .git -prune -o \\( -type f -o -type l \\) -cnewer "$notes/began" -print; }} |
  LC_ALL=C sort -u > "$notes/new"
tar -cf - -T "$notes/new" 2>/dev/null | gzip -c > "$notes/work.tgz" || true
size=$(wc -c < "$notes/work.tgz")
if [ "$size" -le {MOST_BYTES} ]; then base64 < "$notes/work.tgz" > "$notes/work.b64"; else : > "$notes/work.b64"; fi
cat "$notes/new" "$notes/gone" | wc -l
echo "$size" """
    out = await checked(box, script, SECONDS, "collecting the agent's work")
    count, size = _numbers(out)
    archive = await box.read_file(f"{NOTES}/work.b64")
    gone = await box.read_file(f"{NOTES}/gone")
    try:
        return Work(base64.b64decode(archive, validate=False), gone, count, too_large=size > MOST_BYTES)
    except binascii.Error as error:
        raise SandboxError(f"the agent's work did not arrive from sandbox {box.sandbox_id}: {error}") from error


async def apply(box: Box, workdir: str, work: Work) -> str:
    """Bring the changes into a fresh work folder, whose history is removed; return them as a diff, cut if it is long.

    Raises:
        SandboxError: the archive does not unpack.
    """
    await box.write_file(f"{NOTES}/work.tgz", work.archive)
    await box.write_file(f"{NOTES}/gone", work.gone)
    script = f"""set -e
notes={rooted(NOTES)}
cd {rooted(workdir)}
find . -name .git -prune -exec rm -rf {{}} +
mkdir -p "$notes/a" "$notes/b"
tar -tzf "$notes/work.tgz" > "$notes/new" 2>/dev/null || : > "$notes/new"
cat "$notes/new" "$notes/gone" | while IFS= read -r path; do
  case "$path" in *..*|/*|'') continue;; esac
  if [ -f "$path" ] && [ ! -L "$path" ]; then
    mkdir -p "$notes/a/$(dirname "$path")"; cp -p "$path" "$notes/a/$path"
  fi
done
while IFS= read -r path; do
  case "$path" in *..*|/*|'') continue;; esac
  rm -f "$path"
done < "$notes/gone"
if [ -s "$notes/new" ]; then
  tar -xzf "$notes/work.tgz"; tar -xzf "$notes/work.tgz" -C "$notes/b"
fi
cd "$notes" && diff -ruN a b > diff || true
head -c {SHOWN_DIFF} diff > shown"""
    await checked(box, script, SECONDS, "applying the agent's work")
    return await box.read_file(f"{NOTES}/shown")


def _numbers(out: str) -> tuple[int, int]:
    words = out.split()
    if len(words) < 2 or not all(word.isdigit() for word in words[-2:]):
        raise SandboxError(f"collecting the agent's work gave no count: {out[-200:]!r}")
    return int(words[-2]), int(words[-1])
