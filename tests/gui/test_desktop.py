"""A real X server, window manager and applications in containers."""

from __future__ import annotations

import asyncio
import io
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.images_needed import need_image
from trajgym.envs import EnvSpec, Session, check_env
from trajgym.envs.gui import (
    DESKTOP_IMAGE,
    BadAction,
    Click,
    Desktop,
    DesktopEnv,
    Drag,
    Move,
    PictureForm,
    Point,
    PressKeys,
    ScreenEnded,
    Scroll,
    Size,
    TypeText,
    load_desktop_tasks,
)
from trajgym.envs.gui._desktop_demo import demo_script
from trajgym.envs.sandbox import (
    DockerProvider,
    Sandbox,
    SandboxSpec,
    close_shared_providers,
)
from trajgym.rollout import ScriptedPolicy, call, collect
from trajgym.trajectory import Run, Task, blob_hashes

pytestmark = pytest.mark.docker
TASKS = {task.id: task for task in load_desktop_tasks("builtin")}
FREE = Task(
    id="free",
    data={
        "instruction": "x",
        "setup": [{"do": "launch", "command": ["xterm"]}],
        "checks": [{"of": "file", "name": "/home/agent/made", "exists": True}],
    },
)


@pytest.fixture(scope="module", autouse=True)
def image() -> None:
    """The desktop's image; a missing one fails the tests, it never skips them."""
    need_image(DESKTOP_IMAGE, "scripts/desktop-image.sh")


@pytest.fixture
async def sandbox() -> AsyncIterator[Sandbox]:
    async with DockerProvider() as provider:
        async with await provider.start(SandboxSpec(image=DESKTOP_IMAGE)) as started:
            yield started


@pytest.fixture
async def desktop(sandbox: Sandbox) -> AsyncIterator[Desktop]:
    async with Desktop(sandbox, settle=10.0) as opened:
        yield opened


@pytest.fixture
async def shared() -> AsyncIterator[None]:
    """Close what sessions of this test shared."""
    yield
    await close_shared_providers()


async def eventually(look: Callable[[], Awaitable[Any]], wanted: Any) -> Any:
    """Return what is found, once it is what is wanted or after 20 seconds."""
    end = time.monotonic() + 20
    while (found := await look()) != wanted and time.monotonic() < end:
        await asyncio.sleep(0.1)  # applications follow at their own pace
    return found


def picture_of(data: bytes) -> Any:
    from PIL import Image

    return Image.open(io.BytesIO(data)).convert("RGB")


async def test_the_scripted_agent_solves_the_builtin_tasks(tmp_path: Path) -> None:
    """Editor, file manager, calculator and terminal: clicks and keys do what the tasks ask."""
    policy = ScriptedPolicy(lambda asked: demo_script(asked.task, asked.sample)[asked.turn])
    spec = EnvSpec(id="desktop")
    await collect(spec, list(TASKS.values()), policy, tmp_path, samples=1, concurrency=2)
    with Run(tmp_path) as run:
        ends = {s.record.task: s.attempts[0] for s in run.summaries()}
        shown = [m for tree in run.sessions() for turn in tree.turns for m in turn.observation]
        first = run.blob(next(iter(blob_hashes(shown))))
    assert [name for name, end in ends.items() if not (end.outcome and end.outcome.passed)] == []
    assert set(ends) == set(TASKS)
    assert (first.media_type, picture_of(first.data).size) == ("image/png", (1280, 720))


async def test_keys_and_pointer_reach_applications(sandbox: Sandbox, desktop: Desktop) -> None:
    """Text of any script, combinations, clicks, drags, the wheel and the clipboard work."""
    lines = "".join(f"line {number}\n" for number in range(60))
    await sandbox.write_file("/home/agent/a.txt", lines.encode())
    window = await desktop.launch(["mousepad", "/home/agent/a.txt"])
    assert window is not None
    assert window.active
    left, top, width, height = window.place
    middle = Point(left + width // 2, top + height // 2)

    text = "Ærø é ß € Ω ж 你 {[~@|\\]}"
    await desktop.act([Click(middle), PressKeys(("Control", "Home")), TypeText(f"{text}\n")])
    await desktop.act([PressKeys(("Control", "s"))])
    wanted = f"{text}\n{lines}".encode()
    assert await eventually(lambda: sandbox.read_file("/home/agent/a.txt"), wanted) == wanted

    before = await desktop.look()
    assert (await desktop.act([Scroll(middle, dy=300)])).changed
    await desktop.act([Scroll(middle, dy=-3000), Move(Point(5, 5))])
    assert (await desktop.look()).pointer == (5, 5)
    assert before.pointer == middle

    start = Point(left + 2, top + 38)
    await desktop.act([Drag((start, Point(left + width - 60, top + 38)))])
    await desktop.act([PressKeys(("Control", "c"))])
    assert await eventually(desktop.clipboard, text) == text
    await desktop.set_clipboard("Füße\n")
    assert await desktop.clipboard() == "Füße\n"


async def test_a_step_ends_when_the_application_has_followed(sandbox: Sandbox) -> None:
    """What was typed at once is on the disk when the step returns, however long the text."""
    text = "".join(f"word{number} " for number in range(400))
    async with Desktop(sandbox, settle=60.0) as patient:
        await patient.launch(["mousepad", "/home/agent/long.txt"])
        await patient.act([TypeText(text), PressKeys(("Control", "s"))])
        assert (await sandbox.read_file("/home/agent/long.txt")).decode().strip() == text.strip()


async def test_windows_are_waited_for_and_found(desktop: Desktop) -> None:
    """A launch returns with the window there and active; windows are raised and closed by title."""
    for command, application in ((["galculator"], "Galculator"), (["xterm"], "XTerm")):
        window = await desktop.launch(command)
        assert window is not None
        assert (window.application, window.active) == (application, True)
    await desktop.activate("galculator")
    active = (await desktop.look()).active
    assert active is not None
    assert active.application == "Galculator"
    await desktop.close_window("galculator")
    assert [window.application for window in await desktop.windows()] == ["XTerm"]
    with pytest.raises(BadAction, match="no window's title holds 'galculator'"):
        await desktop.activate("galculator")
    with pytest.raises(BadAction, match="'gimp' can't be started"):
        await desktop.launch(["gimp"])
    with pytest.raises(ScreenEnded, match="'sleep' showed no window within 1 s"):
        await desktop.launch(["sleep", "60"], seconds=1)


async def test_the_agent_cannot_speak_for_the_driver(sandbox: Sandbox, desktop: Desktop) -> None:
    """The agent's processes can't open the driver's pipes, and nothing outlives the desktop."""
    await desktop.launch(["xterm"])
    driver = "$(pgrep -o -f '[t]rajgym_desktop')"
    done = await sandbox.run(f"echo forged > /proc/{driver}/fd/1; cat /proc/{driver}/environ")
    assert not done.ok
    assert done.stderr.count(b"Permission denied") == 2
    assert [window.application for window in await desktop.windows()] == ["XTerm"]
    await desktop.close()
    left = "pgrep -f '[t]rajgym_desktop' || pgrep Xvfb || pgrep -x xterm"
    gone = f"for i in $(seq 100); do {left} || exit 0; sleep 0.1; done; exit 1"
    assert (await sandbox.run(gone, timeout=60)).ok


async def test_refused_actions_end_their_row(desktop: Desktop) -> None:
    """What can't be done says so, what came before it stays done, and the desktop goes on."""
    look = await desktop.act([Move(Point(9, 9)), PressKeys(("F99",)), Move(Point(50, 50))])
    assert (look.done, look.pointer) == (1, (9, 9))
    assert "there is no key 'F99'" in look.refused
    assert (
        await desktop.act([Click(Point(5000, 5))])
    ).refused == "(5000, 5) lies outside of the screen"
    assert (await desktop.act([Move(Point(50, 50))])).pointer == (50, 50)


async def test_pictures_in_the_form_asked_for(desktop: Desktop) -> None:
    """PNG is exact, JPEG is smaller, both in the size asked for."""
    exact = (await desktop.look(PictureForm())).picture
    small = (await desktop.look(PictureForm(form="jpeg", size=Size(640, 360)))).picture
    assert exact is not None
    assert small is not None
    assert (exact.media_type, picture_of(exact.data).size) == ("image/png", (1280, 720))
    assert (small.media_type, picture_of(small.data).size) == ("image/jpeg", (640, 360))
    assert picture_of(exact.data).getpixel((640, 360)) == (0x3B, 0x55, 0x68)


async def test_openai_actions_in_the_coordinates_of_a_smaller_picture(shared: None) -> None:
    """The calculator's buttons are hit although the agent sees half the size, as JPEG."""
    config = {"shown": [640, 360], "form": "jpeg", "measure": True}
    keys = [(320, 238), (255, 198), (352, 218), (255, 218), (320, 238), (385, 248)]
    clicks = [{"type": "click", "x": x, "y": y, "button": "left"} for x, y in keys]
    copy = {"type": "keypress", "keys": ["CTRL", "C"]}
    spec = EnvSpec(id="desktop-openai", config=config)
    async with Session(spec, TASKS["product"]) as session:
        for click in clicks:
            await session.step(call("computer", actions=[click]))
        for last in (copy, {"type": "screenshot"}):
            await session.step(call("computer", actions=[last]))
        distances = [turn.signals["goal_distance"] for turn in session.turns]
        await session.step("Copied.")
    assert session.outcome is not None
    assert session.outcome.passed
    assert (distances[:6], distances[-1]) == ([1.0] * 6, 0.0)
    (shown,) = {picture_of(data).size for data in session.images.values()}
    assert shown == (640, 360)


async def test_ui_tars_speaks_in_thousandths(shared: None) -> None:
    """A model that knows only text actions and thousandths solves a task."""
    spec = EnvSpec(id="desktop-ui-tars", config={"thousandths": True})
    async with Session(spec, TASKS["shopping-list"]) as session:
        for action in (
            "click(start_box='<|box_start|>(547,694)<|box_end|>')",
            "hotkey(key='ctrl end')",
            r"type(content='eggs\n')",
            "hotkey(key='ctrl s')",
            "finished(content='done')",
        ):
            await session.step(f"Thought: next.\nAction: {action}")
    assert session.outcome is not None
    assert session.outcome.passed
    assert str(session.status) == "completed"


async def test_signals_for_derivers(shared: None) -> None:
    """A click on nothing, twice: the screen did not change, and the second repeats the first."""
    nothing = call("computer", action="left_click", coordinate=[1200, 700])
    async with Session(EnvSpec(id="desktop"), FREE) as session:
        for message in (nothing, nothing, call("computer", action="type", text="a")):
            await session.step(message)
        first, second, third = (turn.signals for turn in session.turns)
        assert second["actions"][0]["at"] == [1200, 700]
    assert (second["screen_changed"], second["repeated_action"]) == (False, True)
    assert (first["repeated_action"], third["repeated_action"]) == (False, False)
    assert second["screen"] == [1280, 720]


async def test_a_fork_replays_to_the_same_pictures(shared: None) -> None:
    """Another desktop shows pixel for pixel what the first one did, and the attempts part."""
    steps = demo_script(TASKS["rename"], 0)
    async with Session(EnvSpec(id="desktop"), TASKS["rename"]) as session:
        for step in steps[:3]:
            await session.step(step)
        rival = await session.fork(2)
        await session.step("I give up.")
        for step in steps[3:]:
            await rival.step(step)
        assert [session.outcome.passed, rival.outcome.passed] == [False, True]  # type: ignore[union-attr]


async def test_an_agent_that_kills_its_screen_is_scored(shared: None) -> None:
    """The end of the X server by the agent's own doing is no failure: files are still checked."""
    lines = "touch made; pkill Xvfb\n"
    async with Session(EnvSpec(id="desktop"), FREE) as session:
        await session.step(call("computer", action="type", text=lines))
        if not session.done:  # the picture was taken before the server had ended
            await session.step(call("computer", action="screenshot"))
    assert str(session.status) == "truncated:screen"
    assert session.outcome is not None
    assert session.outcome.passed


async def test_a_set_up_that_fails_is_no_score(shared: None) -> None:
    """A task whose set-up does not work is a failure by name, never a zero."""
    data = {**FREE.data, "setup": [{"do": "run", "command": "exit 3"}]}
    async with Session(EnvSpec(id="desktop"), Task(id="bad", data=data)) as session:
        pass
    assert (str(session.status), session.outcome) == ("failed:setup", None)
    assert "step 0 (run): 'exit 3' ended with status 3" in session.attempt.cause


async def test_steps_before_the_checks_go_as_far_as_they_can(shared: None) -> None:
    """A window that the agent has closed is no failure of the task: its checks decide."""
    data = {
        **FREE.data,
        "before_checks": [
            {"do": "close", "title": "no such window"},
            {"do": "run", "command": "touch /home/agent/made"},
        ],
    }
    async with Session(EnvSpec(id="desktop"), Task(id="after", data=data)) as session:
        await session.step("Done.")
    assert session.outcome is not None
    assert session.outcome.passed


async def test_giving_up_on_what_can_be_done_is_not_solved(shared: None) -> None:
    """Only an infeasible task is solved by giving up."""
    data = {**FREE.data, "setup": [{"do": "write", "path": "/home/agent/made", "text": ""}]}
    async with Session(EnvSpec(id="desktop"), Task(id="easy", data=data)) as session:
        await session.step(call("give_up", reason="no idea"))
    assert session.outcome is not None
    assert (session.outcome.passed, str(session.status)) == (False, "completed")


@pytest.mark.slow
async def test_the_environment_keeps_its_promises(shared: None) -> None:
    """The library's own checker passes on the desktop."""
    assert await check_env(EnvSpec(id="desktop"), TASKS["shopping-list"])


@pytest.mark.slow
async def test_every_third_sample_of_the_script_misses(tmp_path: Path) -> None:
    """Groups of the demonstration have mixed outcomes, so that advantages are not all zero."""
    policy = ScriptedPolicy(lambda asked: demo_script(asked.task, asked.sample)[asked.turn])
    tasks = [TASKS["shopping-list"], TASKS["rename"]]
    await collect(EnvSpec(id="desktop"), tasks, policy, tmp_path, samples=3, concurrency=2)
    with Run(tmp_path) as run:
        passed = {
            s.record.sample: s.attempts[0].outcome.passed  # type: ignore[union-attr]
            for s in run.summaries()
        }
    assert passed == {0: True, 1: True, 2: False}


@pytest.mark.slow
async def test_many_desktops_begin_with_their_window(sandbox: Sandbox) -> None:
    """An application that starts at once is never lost to a window manager that is not ready."""
    for _ in range(10):
        async with Desktop(sandbox) as desktop:
            assert await desktop.launch(["galculator"]) is not None


assert DesktopEnv
