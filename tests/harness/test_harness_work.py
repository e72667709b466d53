"""What an agent changed arrives in the grader's sandbox, however it tried to hide it, and nothing of its history."""

from __future__ import annotations

import pytest
import pytest_asyncio

from slime_agl.config.sandbox import SandboxConfig
from slime_agl.errors import SandboxError
from slime_agl.harness.boxes import box_for
from slime_agl.harness.collect import apply, collect, mark
from slime_agl.harness.grade import grade
from slime_agl.harness.places import Places
from slime_agl.harness.task import Task

BASE = {"a/one.txt": "1\n", "b/one.txt": "2\n", "old name.txt": "o\n", "kept.txt": "k\n"}


@pytest_asyncio.fixture
async def places():
    made = Places(SandboxConfig(backend="local", retries=0))
    await made.start()
    yield made
    await made.stop()


async def carried(places, work_of: str, files=BASE) -> tuple[dict[str, str], str, int]:
    """The files in a fresh sandbox after shell lines ran in another; the diff; the number of changes."""
    task = Task(name="t", instruction="i", files=files)
    async with box_for(places, task, network="none", labels={}) as box:
        await mark(box, task.workdir)
        status, out, err = await box.exec(work_of)
        assert status == 0, out + err
        work = await collect(box, task.workdir)
    async with box_for(places, task, network="none", labels={}) as box:
        diff = await apply(box, task.workdir, work)
        _, names, _ = await box.exec("find . -type f -o -type l | sort")
        found = {name.removeprefix("./"): await box.read_file(f"/app/{name}") for name in names.splitlines()}
    return found, diff, work.changed


@pytest.mark.parametrize(
    ("work", "after"),
    [
        ("true", BASE),
        ("echo 3 > a/one.txt", BASE | {"a/one.txt": "3\n"}),
        ("echo 3 > a/one.txt; touch -d 2001-01-01 a/one.txt", BASE | {"a/one.txt": "3\n"}),
        ("rm 'old name.txt'", {name: text for name, text in BASE.items() if name != "old name.txt"}),
        ("mv a c", {"c/one.txt": "1\n", "b/one.txt": "2\n", "old name.txt": "o\n", "kept.txt": "k\n"}),
        ("mv a t; mv b a; mv t b", BASE | {"a/one.txt": "2\n", "b/one.txt": "1\n"}),
        ("echo new > '-n $(x) é.txt'", BASE | {"-n $(x) é.txt": "new\n"}),
        ("echo secret > hidden; chmod 000 hidden", BASE | {"hidden": "secret\n"}),
        ("mkdir -p x/.git; echo h > x/.git/HEAD; echo y > x/y", BASE | {"x/y": "y\n"}),
        ("ln -s kept.txt link", BASE | {"link": "k\n"}),
    ],
)
async def test_changes_arrive(places, work, after):
    found, _, changed = await carried(places, work)
    assert found == after
    assert bool(changed) == (after != BASE)


async def test_the_diff_shows_the_changes(places):
    _, diff, _ = await carried(places, "echo 3 > a/one.txt; rm kept.txt")
    assert "-1\n+3" in diff and "-k\n" in diff and "old name" not in diff


async def test_history_is_gone_before_the_tests_run(places):
    files = {".git/HEAD": "ref\n", "x.txt": "x\n"}
    found, _, changed = await carried(places, "true", files)
    assert found == {"x.txt": "x\n"} and changed == 0


async def test_names_that_lead_outside_remove_nothing(places, tmp_path):
    outside = tmp_path / "outside"
    outside.write_text("mine\n")
    task = Task(name="t", instruction="i", files=BASE)
    async with box_for(places, task, network="none", labels={}) as box:
        await mark(box, task.workdir)
        work = await collect(box, task.workdir)
        hostile = type(work)(work.archive, f"{outside}\n./../../../../../../..{outside}\n", 1)
        await apply(box, task.workdir, hostile)
    assert outside.read_text() == "mine\n"


async def test_the_agents_sandbox_never_has_the_tests(places):
    seen = []

    class Watching(Places):
        def sandbox(self, spec):
            seen.append(spec)
            return places.sandbox(spec)

    watching = Watching(SandboxConfig(backend="local"))
    task = Task(name="t", instruction="i", tests={"test.sh": 'ls / "$SANDBOX_ROOT" >&2; exit 1\n'})
    async with box_for(watching, task, network="gateway", labels={}) as box:
        _, out, _ = await box.exec('ls "$SANDBOX_ROOT"')
        assert "tests" not in out
    with pytest.raises(SandboxError, match="tests"):
        await grade(watching, task, None, {})
    assert [spec.network for spec in seen] == ["gateway", "none"]


@pytest.mark.parametrize(
    ("wrote", "reward"),
    [
        ("echo 0.5 > $L/reward.txt", 0.5),
        ('echo \'{"reward": 0.25, "other": 3}\' > $L/reward.json; echo 1 > $L/reward.txt', 0.25),
        ("echo '{\"score\": 0.75}' > $L/reward.json", 0.75),
        ('echo \'{"a": 1, "b": 2}\' > $L/reward.json', "must have `reward`"),
        ("echo '{' > $L/reward.json", "no JSON"),
        ("true", "left no"),
    ],
)
async def test_rewards_are_read_as_harbor_does(places, wrote, reward):
    script = f'L="$SANDBOX_ROOT/logs/verifier"\n{wrote}\nexit 9\n'
    task = Task(name="t", instruction="i", tests={"test.sh": script})
    if isinstance(reward, float):
        assert (await grade(places, task, None, {})).reward == reward
    else:
        with pytest.raises(SandboxError, match=reward):
            await grade(places, task, None, {})


async def test_tests_that_hang_are_told_by_name(places):
    task = Task(name="t", instruction="i", tests={"test.sh": "sleep 600\n"}, verifier_seconds=0.2)
    with pytest.raises(SandboxError, match=r"did not end within 0\.2 s"):
        await grade(places, task, None, {})
