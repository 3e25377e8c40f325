"""A real X server, window manager and applications in containers."""

from __future__ import annotations

import asyncio
import io
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.images_needed import need_image
from trajgym.envs import Budgets, EnvSpec, Session, check_env
from trajgym.envs.gui import (
    DESKTOP_IMAGE,
    BadAction,
    Desktop,
    DesktopEnv,
    PictureForm,
    ScreenEnded,
    load_desktop_tasks,
)
from trajgym.envs.gui.actions import Click, Drag, Move, Point, PressKeys, Scroll, Size, TypeText
from trajgym.envs.gui.desktop._demo import demo_script
from trajgym.envs.sandbox import (
    DockerProvider,
    Sandbox,
    SandboxSpec,
    close_shared_providers,
)
from trajgym.rollout import ScriptedPolicy, call, collect
from trajgym.trajectory import InvalidInput, Run, Task, blob_hashes, text_of

pytestmark = pytest.mark.docker
TASKS = {task.id: task for task in load_desktop_tasks("builtin")}
PATIENT = Budgets(turns=500, seconds=1800)
SETTLED = {"settle": 30.0}
"""Applications follow within this time on any machine; a step ends as soon as they have."""
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
    """Return what is found, once it is what is wanted or after two minutes."""
    end = time.monotonic() + 120
    while (found := await look()) != wanted and time.monotonic() < end:
        await asyncio.sleep(0.1)  # applications follow at their own pace
    return found


def picture_of(data: bytes) -> Any:
    from PIL import Image

    return Image.open(io.BytesIO(data)).convert("RGB")


async def test_the_scripted_agent_solves_the_builtin_tasks(tmp_path: Path) -> None:
    """Tasks in editor, file manager, calculator and terminal are solved with clicks and keys."""
    policy = ScriptedPolicy(lambda asked: demo_script(asked.task, asked.sample)[asked.turn])
    spec = EnvSpec(id="desktop", config=SETTLED)
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
    """A text of any length that an application saves is on the disk when the step returns."""
    text = "".join(f"word{number} " for number in range(400))
    async with Desktop(sandbox, settle=60.0) as patient:
        await patient.launch(["mousepad", "/home/agent/long.txt"])
        await patient.act([TypeText(text), PressKeys(("Control", "s"))])
        assert (await sandbox.read_file("/home/agent/long.txt")).decode().strip() == text.strip()


async def test_long_texts_of_any_script_arrive(sandbox: Sandbox) -> None:
    """10,000 characters, 1,000 of which are on no keyboard, are entered correctly."""
    russian = "Съешь же ещё этих мягких французских булок, да выпей чаю. "
    chinese = "".join(chr(0x4E00 + 7 * number) for number in range(1000))
    others = "Ελληνικά, עברית, العربية, हिन्दी, ไทย, 한국어, emoji 🦊🎉, ﬁn: e\u0301 — “quoted”.\n"
    text = (russian + others) * 70
    text = text[: 9_000 - len(chinese)] + chinese + text[:1_000]
    async with Desktop(sandbox, settle=60.0) as patient:
        await patient.launch(["mousepad", "/home/agent/any.txt"])
        look = await patient.act([TypeText(text), PressKeys(("Control", "s"))])
        assert not look.refused
        found = (await sandbox.read_file("/home/agent/any.txt")).decode()
        assert found.removesuffix("\n") == text.removesuffix("\n")
        look = await patient.act([TypeText("\x07")])
        assert "U+0007 is a control character" in look.refused


async def test_windows_are_waited_for_and_found(desktop: Desktop) -> None:
    """A launch returns when the window is active; windows are raised and closed by title."""
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
    gone = f"while {left}; do sleep 0.1; done"
    assert (await sandbox.run(gone, timeout=120)).ok


async def test_refused_actions_end_their_row(desktop: Desktop) -> None:
    """An action that fails has an error; earlier ones keep their effects, and later ones work."""
    look = await desktop.act([Move(Point(9, 9)), PressKeys(("F99",)), Move(Point(50, 50))])
    assert (look.done, look.pointer) == (1, (9, 9))
    assert "there is no key 'F99'" in look.refused
    assert (await desktop.act([Click(Point(5000, 5))])).refused == "(5000, 5) is outside the screen"
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
    """Clicks hit the calculator's buttons although the agent sees a JPEG of half the size."""
    config: dict[str, Any] = {"shown": [640, 360], "picture": "jpeg", "measure": True}
    keys = [(320, 238), (255, 198), (352, 218), (255, 218), (320, 238), (385, 248)]
    clicks = [{"type": "click", "x": x, "y": y, "button": "left"} for x, y in keys]
    copy = {"type": "keypress", "keys": ["CTRL", "C"]}
    spec = EnvSpec(id="desktop", config={"actions": "openai", **config, **SETTLED})
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
    """A model that writes actions as text with points in thousandths solves a task."""
    spec = EnvSpec(id="desktop", config={"actions": "ui-tars", "thousandths": True, **SETTLED})
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


async def test_pyautogui_is_an_action_language(shared: None) -> None:
    """Calls of pyautogui and pyperclip solve a task; what they ask for is reported."""
    config: dict[str, Any] = {"actions": "pyautogui", "clipboard": True, **SETTLED}
    spec = EnvSpec(id="desktop", config=config)
    async with Session(spec, TASKS["shopping-list"]) as session:
        result = await session.step("import os\nos.system('true')")
        assert "write plain calls only" in text_of(result.observation[0])
        result = await session.step(
            "I copy the list.\n```python\nimport pyautogui\npyautogui.click(700, 500)\n"
            "pyautogui.hotkey('ctrl', 'a')\npyautogui.hotkey('ctrl', 'c')\n"
            "pyperclip.paste()\npyautogui.moveRel(-200, 20)\npyautogui.position()\n```"
        )
        said = text_of(result.observation[0]).split("\n")
        assert said[:3] == ["X=500,Y=520", "Clipboard: milk", "bread"]
        await session.step(
            "```python\npyautogui.hotkey('ctrl', 'end')\npyperclip.copy('eggs')\n"
            "pyautogui.hotkey('ctrl', 'v')\npyautogui.hotkey('ctrl', 's')\n```"
        )
        await session.step("DONE")
    assert session.outcome is not None
    assert session.outcome.passed


async def test_the_clipboard_as_tools(shared: None) -> None:
    """With ``clipboard`` the agent sets and reads it; without it such a call is refused."""
    task = TASKS["paste"]
    async with Session(EnvSpec(id="desktop", config={"clipboard": True}), task) as session:
        result = await session.step(call("read_clipboard"))
        assert "Clipboard: Füße über Ærø: 3 €[" in text_of(result.observation[0])
        await session.step(call("set_clipboard", text="ж" * 30_000))
        result = await session.step(call("read_clipboard"))
        assert "жж[... 10000 more characters ...]" in text_of(result.observation[0])
    async with Session(EnvSpec(id="desktop", config={"actions": "pyautogui"}), task) as session:
        result = await session.step("pyperclip.paste()")
        assert "clipboard" in text_of(result.observation[0])


async def test_zoom_shows_an_area_in_full_resolution(shared: None) -> None:
    """The picture is of the area, larger than the screenshot shows it; the screen is the same."""
    spec = EnvSpec(id="desktop", config={"shown": [640, 360]})
    async with Session(spec, TASKS["product"]) as session:
        result = await session.step(call("computer", action="zoom", region=[230, 180, 310, 210]))
        (blob,) = blob_hashes(result.observation)
        shown = picture_of(session.images[blob])
        assert shown.size == (640, 240)
        result = await session.step(call("computer", action="screenshot"))
        (blob,) = blob_hashes(result.observation)
        whole = picture_of(session.images[blob])
    enlarged = whole.crop((230, 180, 310, 210)).resize((640, 240))
    assert shown.tobytes() != enlarged.tobytes()
    assert len(shown.getcolors(1 << 20)) > 1


async def test_the_pointer_is_drawn_if_asked_for(sandbox: Sandbox) -> None:
    """With ``cursor``, pictures differ from those without it at the pointer, and only there."""
    async with Desktop(sandbox, cursor=True) as desktop:
        pictures = []
        for at in (Point(200, 200), Point(600, 400)):
            look = await desktop.act([Move(at)], PictureForm())
            assert look.picture is not None
            assert not look.changed
            pictures.append(picture_of(look.picture.data))
    from PIL import ImageChops

    left, top, right, bottom = ImageChops.difference(*pictures).getbbox()
    assert 180 <= left <= 200
    assert 180 <= top <= 200
    assert 600 <= right <= 640
    assert 400 <= bottom <= 440


async def test_the_elements_of_applications(shared: None) -> None:
    """With ``tree`` the agent reads elements with their places, hits them, and sees the effect."""
    config: dict[str, Any] = {"tree": True, "shown": [640, 360], "picture": "none"}
    spec = EnvSpec(id="desktop", config=config)
    async with Session(spec, TASKS["budget"], budgets=PATIENT) as session:

        async def read(*wanted: str) -> str:
            end = time.monotonic() + 120
            while True:
                result = await session.step(call("computer", action="screenshot"))
                said = text_of(result.observation[0])
                if all(text in said for text in wanted):
                    return said
                assert time.monotonic() < end, said

        said = await read('menu "File" at ', 'table cell "B2"')
        assert 'frame "budget.fods' in said
        cells = dict(re.findall(r'table cell "(\w+)" at \d+,\d+ text="([^"]*)"', said))
        assert cells == {"A1": "Bread", "B1": "3.25", "A2": "Milk", "B2": "1.5"}
        found = re.search(r'table cell "B2" at (\d+),(\d+)', said)
        assert found
        place = [int(found[1]), int(found[2])]
        await session.step(call("computer", action="left_click", coordinate=place))
        await session.step(call("computer", action="type", text="7\n"))
        said = await read('text="7"')
        assert re.findall(r'table cell "(\w+)" at \d+,\d+ text="7"', said) == ["B2"]


async def test_elements_are_read_within_a_limit(sandbox: Sandbox) -> None:
    """An application that hangs, and a limit that is reached, leave a list with the reason."""
    async with asyncio.timeout(300):
        async with Desktop(sandbox, tree=True, tree_seconds=15) as desktop:
            await desktop.launch(["galculator"])
            await desktop.launch(["mousepad"])
            names: set[str] = set()
            cut = ""
            # Applications register some time after their windows appear, and answer late on a
            # machine that is busy with their start.
            while len(names) < 2 or cut:
                look = await desktop.look()
                names = {one.name for one in look.elements if not one.depth}
                cut = look.elements_cut
            whole = len(look.elements)
            assert (await sandbox.run("pkill -STOP mousepad")).ok
            look = await desktop.look()
            assert look.elements_cut == "mousepad did not answer"
            assert 0 < len(look.elements) < whole
            assert {one.name for one in look.elements if not one.depth} == {"galculator"}
            await sandbox.run("pkill -CONT mousepad")
        async with Desktop(sandbox, tree=True, tree_seconds=0.001) as desktop:
            await desktop.launch(["mousepad"])
            look = await desktop.look()
            assert look.elements_cut == "reading them took longer than 0.001 s"
    with pytest.raises(InvalidInput, match="tree_seconds 0"):
        Desktop(sandbox, tree=True, tree_seconds=0)


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
    """A fork's desktop has the same pixels as the first one, and the attempts then diverge."""
    steps = demo_script(TASKS["rename"], 0)
    patient = EnvSpec(id="desktop", config=SETTLED)
    async with Session(patient, TASKS["rename"]) as session:
        for step in steps[:3]:
            await session.step(step)
        rival = await session.fork(2)
        await session.step("I give up.")
        for step in steps[3:]:
            await rival.step(step)
        assert [session.outcome.passed, rival.outcome.passed] == [False, True]  # type: ignore[union-attr]


async def test_an_agent_that_kills_its_screen_is_scored(shared: None) -> None:
    """If the agent ends the X server, this is no failure: files are still checked."""
    lines = "touch made; pkill Xvfb\n"
    async with Session(EnvSpec(id="desktop"), FREE) as session:
        await session.step(call("computer", action="type", text=lines))
        while not session.done:  # the picture was taken before the server had ended
            await session.step(call("computer", action="screenshot"))
    assert str(session.status) == "truncated:screen"
    assert session.outcome is not None
    assert session.outcome.passed


async def test_a_set_up_that_fails_is_no_score(shared: None) -> None:
    """A task whose set-up fails is a failure with its cause, never a score of 0."""
    data = {**FREE.data, "setup": [{"do": "run", "command": "exit 3"}]}
    async with Session(EnvSpec(id="desktop"), Task(id="bad", data=data)) as session:
        pass
    assert (str(session.status), session.outcome) == ("failed:setup", None)
    assert "step 0 (run): 'exit 3' ended with status 3" in session.attempt.cause


async def test_steps_before_the_checks_go_as_far_as_they_can(shared: None) -> None:
    """If the agent has closed a window, this is no failure: the checks decide."""
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
    """An application launched immediately gets a window: the window manager is awaited."""
    for _ in range(10):
        async with Desktop(sandbox) as desktop:
            assert await desktop.launch(["galculator"]) is not None


assert DesktopEnv
