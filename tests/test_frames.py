"""`trajgym show` and `trajgym frames` over a run with pictures."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.pictures import COLOURS, click, picture
from trajgym.cli import app
from trajgym.envs import Env, EnvSpec, Image, Session, ToolResult, register, tool
from trajgym.rollout import TokenPolicy, call, collect
from trajgym.server.viewer._marks import Mark, draw_marks, marks_of
from trajgym.trajectory import InvalidInput, Store, Task, Turn


def run(*arguments: object) -> str:
    result = CliRunner(env={"COLUMNS": "160"}).invoke(app, [str(a) for a in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture
async def recorded(tmp_path: Path) -> Path:
    """A run of one session with three clicks."""
    policy = TokenPolicy.fake([click(30, 40), click(50, 20), click(5, 5)])
    await collect(EnvSpec(id="test/screen"), [Task(id="a")], policy, tmp_path / "run", samples=1)
    return tmp_path / "run"


def pixel(data: bytes, x: int, y: int) -> tuple[int, int, int]:
    from PIL import Image

    found: Any = Image.open(io.BytesIO(data)).convert("RGB").getpixel((x, y))
    return tuple(found)  # type: ignore[return-value]


def test_show_says_where_images_are(recorded: Path) -> None:
    """Each picture has a line: who saw it, what it is, its ids; and how to write them all."""
    name = next(line.split()[0] for line in run("show", recorded).splitlines() if "solved" in line)
    said = run("show", recorded, name)
    assert said.count("▣ image") == 3
    assert f"image/png, {len(picture('red'))} bytes" in said
    assert "shown to turn 1" in said
    assert "by bytes" in said
    assert f"trajgym frames {recorded} {name} --out DIR" in said


def test_frames_have_the_click_that_was_decided_on_them(recorded: Path, tmp_path: Path) -> None:
    """The picture after turn 0 shows turn 1's click; the last one has none."""
    out = tmp_path / "frames"
    said = run("frames", recorded, "--out", out)
    (folder,) = out.iterdir()
    files = {file.name: file.read_bytes() for file in sorted(folder.iterdir())}
    assert list(files) == ["turn-000.png", "turn-001.png", "turn-002.png"]
    assert str(folder / "turn-000.png") in said
    assert pixel(files["turn-000.png"], 50, 20) == (230, 30, 30)
    assert pixel(files["turn-000.png"], 80, 55) == (255, 0, 0)
    assert files["turn-002.png"] == picture(COLOURS[2])


def test_plain_frames_are_the_stored_bytes(recorded: Path, tmp_path: Path) -> None:
    """Nothing is drawn or encoded anew when pictures are asked for as they are."""
    run("frames", recorded, "--out", tmp_path / "f", "--plain")
    files = sorted((tmp_path / "f").rglob("*.png"))
    assert [file.read_bytes() for file in files] == [picture(colour) for colour in COLOURS[:3]]


def test_a_video_shows_the_pictures_with_their_clicks(recorded: Path, tmp_path: Path) -> None:
    """A session is one animated file: a frame per picture, each with the action taken on it."""
    from PIL import Image

    said = run("frames", recorded, "--out", tmp_path / "v", "--video", "--seconds", "0.5")
    (file,) = (tmp_path / "v").iterdir()
    assert str(file) in said
    with Image.open(file) as video:
        assert (video.format, getattr(video, "n_frames", 1)) == ("WEBP", 3)
        seen = []
        for number in range(3):
            video.seek(number)
            seen.append(video.convert("RGB").getpixel((80, 55)))
            if number == 0:
                red, green, _ = video.convert("RGB").getpixel((50, 20))
                assert red > 150
                assert green < 100
        assert video.info["duration"] in {500, 1000}
    assert len(set(seen)) == 3
    with pytest.raises(InvalidInput, match=r"0\.02 to 60"):
        run("frames", recorded, "--out", tmp_path / "v", "--video", "--seconds", "0")


@pytest.mark.parametrize(("form", "codec"), [("mp4", "h264"), ("webm", "vp9")])
def test_a_video_in_a_format_of_players(
    recorded: Path, tmp_path: Path, form: str, codec: str
) -> None:
    """Every picture is shown for the given time, with its click, and the last one twice as long."""
    import av

    video = ["--video", "--format", form, "--seconds", "0.5"]
    run("frames", recorded, "--out", tmp_path / "v", *video)
    (file,) = (tmp_path / "v").iterdir()
    assert file.suffix == f".{form}"
    with av.open(str(file)) as container:
        (stream,) = container.streams.video
        assert stream.codec_context.name == codec
        shown = [frame.to_image() for frame in container.decode(stream)]
    assert len(shown) == 20  # 0.5 + 0.5 + 1 s, ten a second
    red, green, blue = shown[0].getpixel((80, 55))
    assert red > 200 > 60 > max(green, blue)
    assert len({shown[at].getpixel((80, 55)) for at in (2, 7, 12)}) == 3
    with pytest.raises(InvalidInput, match="use one of webp, mp4, webm"):
        run("frames", recorded, "--out", tmp_path / "v", "--video", "--format", "avi")


async def test_frames_of_a_fork(tmp_path: Path) -> None:
    """The picture at which attempts part is there once for each, with its own click."""
    async with (
        Store(tmp_path / "run") as store,
        Session(EnvSpec(id="test/screen"), Task(id="a"), store=store) as session,
    ):
        await session.step(click(30, 40))
        rival = await session.fork(0)
        await session.step(click(5, 5))
        await rival.step(click(70, 8))
    run("frames", tmp_path / "run", "--out", tmp_path / "f")
    files = {file.name: file.read_bytes() for file in (tmp_path / "f").rglob("*.png")}
    assert sorted(files) == [
        *("turn-000-attempt1.png", "turn-000.png", "turn-001.png", "turn-002.png"),
    ]
    assert pixel(files["turn-000.png"], 5, 5) == (230, 30, 30)
    assert pixel(files["turn-000-attempt1.png"], 70, 8) == (230, 30, 30)


@register("test/zooming")
class Zooming(Env):
    """A screen of 200 by 100 whose pictures are 100 by 50; zooms show an area of it."""

    def reset(self, task: Task, seed: int | None) -> ToolResult:
        return ToolResult(content=["the screen", Image(picture("blue", 100, 50), "image/png")])

    @tool
    def do(self, action: dict[str, Any]) -> ToolResult:
        """Act.

        Args:
            action: in wire form.
        """
        shown = Image(picture("blue", 100, 50), "image/png")
        return ToolResult(content=[shown], signals={"actions": [action], "screen": [200, 100]})

    def verify(self) -> bool:
        return True


async def test_actions_after_a_zoom_are_drawn_where_they_were(tmp_path: Path) -> None:
    """Points refer to the screen, and the picture of a zoom shows a part of it."""
    actions: list[dict[str, Any]] = [
        {"do": "zoom", "area": [100, 40, 140, 60]},
        {"do": "click", "at": [120, 50]},
        {"do": "zoom", "area": [60, 60, 100, 80]},
        {"do": "click", "at": [120, 50]},
    ]
    async with (
        Store(tmp_path / "run") as store,
        Session(EnvSpec(id="test/zooming"), Task(id="a"), store=store) as session,
    ):
        for action in actions:
            await session.step(call("do", action=action))
    run("frames", tmp_path / "run", "--out", tmp_path / "f")
    files = {file.name: file.read_bytes() for file in (tmp_path / "f").rglob("*.png")}
    red, blue = (230, 30, 30), (0, 0, 255)
    assert pixel(files["start.png"], 60, 25) == blue
    assert pixel(files["start.png"], 50, 25) == red  # the left side of the area
    assert pixel(files["start.png"], 70, 25) == red
    assert pixel(files["turn-000.png"], 50, 25) == red  # the middle of the area
    assert pixel(files["turn-001.png"], 30, 35) == red  # the whole screen again
    assert pixel(files["turn-001.png"], 40, 35) == blue
    assert pixel(files["turn-002.png"], 60, 25) == blue  # the click is outside the area


async def test_a_run_without_pictures_says_so(tmp_path: Path) -> None:
    """Nothing to write is an error, not an empty folder."""
    policy = TokenPolicy.fake(["x"] * 20)
    await collect(EnvSpec(id="test/screen"), [Task(id="a")], policy, tmp_path / "run", samples=1)
    with pytest.raises(InvalidInput, match="no image was shown"):
        run("frames", tmp_path / "run", "--out", tmp_path / "f")


@pytest.mark.parametrize(
    ("arguments", "points", "label"),
    [
        ({"x": 3, "y": 4}, ((3, 4),), "act 3,4"),
        ({"coordinate": [3, 4], "action": "left_click"}, ((3, 4),), "left_click 3,4"),
        (
            {"start_coordinate": [1, 2], "coordinate": [3, 4], "action": "left_click_drag"},
            ((1, 2), (3, 4)),
            "left_click_drag 1,2 to 3,4",
        ),
        ({"action": {"type": "click", "x": 3, "y": 4}}, ((3, 4),), "act 3,4"),
        ({"path": [{"x": 1, "y": 2}, {"x": 3, "y": 4}]}, ((1, 2), (3, 4)), "act 1,2 to 3,4"),
        ({"text": "hi", "action": "type"}, (), "type 'hi'"),
        ({"action": "zoom", "region": [1, 2, 3]}, (), "zoom"),
        ({"keys": ["ctrl", "s"]}, (), "act 'ctrl+s'"),
    ],
)
def test_actions_are_read_from_arguments(
    arguments: dict[str, Any], points: tuple[Any, ...], label: str
) -> None:
    """Every known way to name a point is found in a tool call."""
    turn = Turn(index=0, parent=None, message=call("act", **arguments))
    marks, screen = marks_of(turn)
    assert (marks, screen) == ([Mark(points, label)], None)


def test_noted_actions_count_in_pixels_of_the_screen() -> None:
    """Signals come first, and their points are scaled to the picture."""
    turn = Turn(
        index=0,
        parent=None,
        message=call("act", x=1, y=1),
        signals={"actions": [{"do": "click", "at": [100, 80]}], "screen": [192, 128]},
    )
    marks, screen = marks_of(turn)
    assert marks == [Mark(((100, 80),), "click 100,80")]
    drawn = draw_marks(picture("blue", form="JPEG"), marks, screen)
    assert drawn.startswith(b"\xff\xd8")
    red, green, blue = pixel(drawn, 50, 40)
    assert red > 180 > 90 > max(green, blue)
