"""Actions: four notations, one model, coordinates of the screen."""

from __future__ import annotations

from typing import Any

import pytest

from trajgym.envs import EnvSpec, tools_of
from trajgym.envs.gui import BadAction, BrowserEnv, DesktopEnv
from trajgym.envs.gui.actions import (
    Action,
    Click,
    CursorPosition,
    Drag,
    Element,
    Fill,
    Finish,
    Focus,
    FocusTab,
    GiveUp,
    GoTo,
    KeyDown,
    MouseDown,
    MouseUp,
    Move,
    Point,
    PressKeys,
    ReadClipboard,
    Say,
    Scale,
    Screenshot,
    Scroll,
    SelectOption,
    SetClipboard,
    Size,
    TypeText,
    Wait,
    Zoom,
    parse_anthropic,
    parse_browsergym,
    parse_openai,
    parse_pyautogui,
    parse_ui_tars,
    to_wire,
)
from trajgym.trajectory import InvalidInput

SAME = Scale(Size(1280, 720), Size(1280, 720))
HALF = Scale(Size(640, 360), Size(1280, 720))


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ({"type": "click", "x": 10, "y": 20, "button": "left"}, Click(Point(20, 40))),
        ({"type": "click", "x": 0, "y": 0, "button": "wheel"}, Click(Point(0, 0), "middle")),
        (
            {"type": "click", "x": 1, "y": 1, "button": "left", "keys": ["CTRL"]},
            Click(Point(2, 2), keys=("Control",)),
        ),
        ({"type": "double_click", "x": 3, "y": 4}, Click(Point(6, 8), count=2)),
        ({"type": "move", "x": 3, "y": 4}, Move(Point(6, 8))),
        (
            {"type": "drag", "path": [{"x": 1, "y": 1}, {"x": 5, "y": 9}]},
            Drag((Point(2, 2), Point(10, 18))),
        ),
        ({"type": "keypress", "keys": ["CTRL", "a"]}, PressKeys(("Control", "a"))),
        (
            {"type": "scroll", "x": 5, "y": 5, "scroll_x": 0, "scroll_y": -50},
            Scroll(Point(10, 10), 0, -100),
        ),
        ({"type": "type", "text": "hello"}, TypeText("hello")),
        ({"type": "wait"}, Wait(2.0)),
        ({"type": "screenshot"}, Screenshot()),
    ],
)
def test_openai(said: dict[str, Any], meant: Action) -> None:
    """Every action of OpenAI's computer use is translated, with points scaled to the screen."""
    assert parse_openai(said, HALF) == [meant]
    assert parse_openai({"type": "computer_call", "action": said}, HALF) == [meant]
    assert parse_openai({"actions": [said, said]}, HALF) == [meant, meant]


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ({"action": "left_click", "coordinate": [10, 20]}, [Click(Point(20, 40))]),
        ({"action": "right_click"}, [Click(None, "right")]),
        ({"action": "triple_click", "coordinate": [1, 1]}, [Click(Point(2, 2), count=3)]),
        (
            {"action": "left_click", "coordinate": [1, 1], "text": "shift"},
            [Click(Point(2, 2), keys=("Shift",))],
        ),
        ({"action": "mouse_move", "coordinate": [4, 4]}, [Move(Point(8, 8))]),
        (
            {"action": "left_click_drag", "start_coordinate": [1, 1], "coordinate": [2, 2]},
            [Drag((Point(2, 2), Point(4, 4)))],
        ),
        (
            {"action": "left_click_drag", "coordinate": [2, 2]},
            [MouseDown(), Move(Point(4, 4)), MouseUp()],
        ),
        (
            {"action": "scroll", "coordinate": [2, 2], "scroll_direction": "up",
             "scroll_amount": 3},
            [Scroll(Point(4, 4), 0, -300)],
        ),
        ({"action": "key", "text": "ctrl+s Return"}, [PressKeys(("Control", "s")),
                                                     PressKeys(("Enter",))]),
        ({"action": "hold_key", "text": "a", "duration": 1.5}, [PressKeys(("a",), 1.5)]),
        ({"action": "type", "text": "hi"}, [TypeText("hi")]),
        ({"action": "wait", "duration": 3}, [Wait(3)]),
        ({"action": "screenshot"}, [Screenshot()]),
        ({"action": "cursor_position"}, [CursorPosition()]),
        ({"action": "zoom", "region": [10, 20, 50, 40]}, [Zoom((20, 40, 100, 80))]),
    ],
)  # fmt: skip
def test_anthropic(said: dict[str, Any], meant: list[Action]) -> None:
    """Actions of both versions of Anthropic's computer tool are translated."""
    assert parse_anthropic(said, HALF) == meant


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("click(start_box='(10,20)')", [Click(Point(20, 40))]),
        ("click(start_box='<|box_start|>(10,20)<|box_end|>')", [Click(Point(20, 40))]),
        ("click(point='<point>10 20</point>')", [Click(Point(20, 40))]),
        ("click(start_box='[8,16,12,24]')", [Click(Point(20, 40))]),
        ("left_double(start_box='(1,1)')", [Click(Point(2, 2), count=2)]),
        ("right_single(start_box='(1,1)')", [Click(Point(2, 2), "right")]),
        (
            "drag(start_box='(1,1)', end_box='(3,3)')",
            [Drag((Point(2, 2), Point(6, 6)))],
        ),
        ("hotkey(key='ctrl c')", [PressKeys(("Control", "c"))]),
        (r"type(content='it\'s\n')", [TypeText("it's\n")]),
        ("scroll(start_box='(1,1)', direction='down')", [Scroll(Point(2, 2), 0, 500)]),
        ("wait()", [Wait(5.0)]),
        ("finished(content='42')", [Finish("42")]),
    ],
)
def test_ui_tars(said: str, meant: list[Action]) -> None:
    """The action after the thought of a UI-TARS message is read, in every notation of points."""
    assert parse_ui_tars(f"Thought: I'd click(...)\nAction: {said}", HALF) == meant


def test_ui_tars_speaks_in_thousandths() -> None:
    """Version 1 gives coordinates in thousandths of the screen, whatever its size."""
    scale = Scale(Size(1000, 1000), Size(1920, 1080))
    assert parse_ui_tars("Action: click(start_box='(500,1000)')", scale) == [
        Click(Point(960, 1079))
    ]


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("click('a51')", [Click(Element("a51"))]),
        ("click('7', button='right', modifiers=['Shift'])",
         [Click(Element("7"), "right", keys=("Shift",))]),
        ("dblclick('7')", [Click(Element("7"), count=2)]),
        ("fill('7', 'a (b) \\'c\\'')", [Fill(Element("7"), "a (b) 'c'")]),
        ("fill('7', 'x', True)", [Fill(Element("7"), ""), TypeText("x")]),
        ("clear('7')", [Fill(Element("7"), "")]),
        ("hover('7')", [Move(Element("7"))]),
        ("press('7', 'Control+a')", [Focus(Element("7")), PressKeys(("Control", "a"))]),
        ("select_option('7', ['red', 'blue'])", [SelectOption(Element("7"), ("red", "blue"))]),
        ("drag_and_drop('1', '2')", [Drag((Element("1"), Element("2")))]),
        ("scroll(0, 100)", [Scroll(None, 0, 200)]),
        ("mouse_click(10, 20)", [Click(Point(20, 40))]),
        ("goto('http://shop.test/')", [GoTo("http://shop.test/")]),
        ("tab_focus(1)", [FocusTab(1)]),
        ("send_msg_to_user('done')", [Say("done")]),
        ("report_infeasible('no such page')", [GiveUp("no such page")]),
        ("noop()", [Wait(1.0)]),
        ("I fill it in.\n```python\nfill('1', 'x')\nclick('2')\n```",
         [Fill(Element("1"), "x"), Click(Element("2"))]),
    ],
)  # fmt: skip
def test_browsergym(said: str, meant: list[Action]) -> None:
    """BrowserGym's calls are read as text: by element, by coordinate, several at once."""
    assert parse_browsergym(said, HALF) == meant


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("pyautogui.click(10, 20)", [Click(Point(20, 40))]),
        ("pyautogui.click(x=10, y=20, clicks=2, interval=0.1, button='right')",
         [Click(Point(20, 40), "right", 2)]),
        ("pyautogui.click((10, 20), clicks=4)", [Click(Point(20, 40), count=3),
                                                Click(Point(20, 40))]),
        ("pyautogui.doubleClick(1, 1)", [Click(Point(2, 2), count=2)]),
        ("pyautogui.tripleClick()", [Click(None, count=3)]),
        ("pyautogui.rightClick(1, 1)", [Click(Point(2, 2), "right")]),
        ("pyautogui.middleClick(1, 1)", [Click(Point(2, 2), "middle")]),
        ("pyautogui.moveTo(3, 4, duration=0.5)", [Move(Point(6, 8))]),
        ("pyautogui.moveTo(None, 4)", [Move(Point(100, 8))]),
        ("pyautogui.moveRel(-10, 5)", [Move(Point(80, 60))]),
        ("pyautogui.moveTo(1, 1); pyautogui.dragTo(3, 3, 2, button='left')",
         [Move(Point(2, 2)), Drag((Point(2, 2), Point(6, 6)))]),
        ("pyautogui.dragRel(10, 0)", [Drag((Point(100, 50), Point(120, 50)))]),
        ("pyautogui.mouseDown(1, 1)", [Move(Point(2, 2)), MouseDown()]),
        ("pyautogui.mouseUp(button='right')", [MouseUp("right")]),
        ("pyautogui.scroll(-3)", [Scroll(None, 0, 300)]),
        ("pyautogui.scroll(2, x=1, y=1)", [Scroll(Point(2, 2), 0, -200)]),
        ("pyautogui.hscroll(2)", [Scroll(None, 200, 0)]),
        (r"pyautogui.write('it\'s\n', interval=0.05)", [TypeText("it's\n")]),
        ("pyautogui.typewrite(['a', 'enter'])", [PressKeys(("a",)), PressKeys(("Enter",))]),
        ("pyautogui.press(['left', 'esc'], presses=2)",
         [PressKeys(("ArrowLeft",)), PressKeys(("Escape",))] * 2),
        ("pyautogui.hotkey('ctrl', 'shift', 't')", [PressKeys(("Control", "Shift", "t"))]),
        ("pyautogui.keyDown('winleft')", [KeyDown("Meta")]),
        ("time.sleep(1.5)", [Wait(1.5)]),
        ("pyautogui.screenshot(region=(10, 20, 30, 40))", [Zoom((20, 40, 80, 120))]),
        ("pyautogui.position()", [CursorPosition()]),
        ("pyperclip.copy('x')", [SetClipboard("x")]),
        ("pyperclip.paste()", [ReadClipboard()]),
        ("WAIT", [Wait(2.0)]),
        ("```python\nDONE\n```", [Finish()]),
        ("FAIL", [GiveUp()]),
        (("I click.\n```python\nimport pyautogui\nimport time, pyperclip\n# the button\n"
          "pyautogui.click(1, 1)\ntime.sleep(1)\n```"), [Click(Point(2, 2)), Wait(1.0)]),
    ],
)  # fmt: skip
def test_pyautogui(said: str, meant: list[Action]) -> None:
    """Calls of pyautogui are read as text: what its functions do, from where the pointer is."""
    assert parse_pyautogui(said, HALF, Point(100, 50)) == meant


@pytest.mark.parametrize(
    "said",
    [
        "import os",
        "import pyautogui as gui\ngui.click(1, 1)",
        "import pyautogui",
        "click(1, 1)",
        "os.system('true')",
        "pyautogui.click(open('/etc/passwd').read())",
        "pyautogui.click(*[1, 1])",
        "x = 3\npyautogui.click(x, 1)",
        "for i in range(3): pyautogui.click(1, 1)",
        "pyautogui.__class__('x')",
        "pyautogui.PAUSE = 3",
        "pyautogui.alert('x')",
        "pyautogui.click('button.png')",
        "pyautogui.click(5000, 1)",
        "pyautogui.click(1, 1, clicks=1000)",
        "pyautogui.press('hyperspace')",
        "pyautogui.write()",
        "time.sleep(1e9)",
        "",
    ],
)
def test_pyautogui_is_never_run(said: str) -> None:
    """Code that is not a sequence of known calls with literals is refused."""
    with pytest.raises(BadAction):
        parse_pyautogui(said, SAME)


@pytest.mark.parametrize(
    "said",
    [
        "import os",
        "click(open('/etc/passwd').read())",
        "__import__('os').system('true')",
        "click('1') if True else 0",
        "fill('1')",
        "fill('1', 'x', colour='red')",
        "click(*['1'])",
        "fly('1')",
        "mouse_click('1', 2)",
        "",
        "(" * 1000,
        "click('1'" + " " * 30_000,
    ],
)
def test_text_is_never_run(said: str) -> None:
    """Text that is no plain call of a known action is refused with an error for the agent."""
    with pytest.raises(BadAction):
        parse_browsergym(said, SAME)


@pytest.mark.parametrize(
    "said",
    [
        {"type": "click", "x": 5000, "y": 0, "button": "left"},
        {"type": "click", "x": -1, "y": 0, "button": "left"},
        {"type": "click", "y": 0, "button": "left"},
        {"type": "fly"},
        {"type": "keypress", "keys": ["HYPERSPACE"]},
        {"type": "drag", "path": [{"x": 1, "y": 1}]},
        {"type": "click", "x": 1, "y": 1, "button": "left", "keys": ["a"]},
    ],
)
def test_bad_openai_actions_say_what_is_wrong(said: dict[str, Any]) -> None:
    """A point off the screen, a missing field or an unknown key is an error for the agent."""
    with pytest.raises(BadAction, match=r"outside|action|no key|held"):
        parse_openai(said, SAME)


@pytest.mark.parametrize(
    "said",
    [
        {"action": "scroll", "scroll_direction": "up"},
        {"action": "type"},
        {"action": "wait", "duration": 1e9},
        {"action": "left_click", "coordinate": [1]},
        {"action": "zoom"},
        {"action": "zoom", "region": [5, 5, 5, 9]},
        {"action": "zoom", "region": [0, 0, 5000, 9]},
    ],
)
def test_bad_anthropic_actions_say_what_is_wrong(said: dict[str, Any]) -> None:
    """A call of the computer tool that lacks an argument is an error for the agent."""
    with pytest.raises(BadAction):
        parse_anthropic(said, SAME)


def test_wire_form_is_json() -> None:
    """Drivers and signals get plain values: points as lists, elements as ids."""
    assert to_wire(Click(Point(1, 2), keys=("Shift",))) == {
        "do": "click", "at": [1, 2], "button": "left", "count": 1, "keys": ["Shift"],
    }  # fmt: skip
    assert to_wire(Drag((Element("3"), Point(4, 5))))["path"] == ["3", [4, 5]]
    assert to_wire(GoTo("u")) == {"do": "go_to", "url": "u"}


def test_both_screens_choose_their_action_space_in_the_same_way() -> None:
    """One setting has one set of options; a space that a screen lacks is refused by name."""
    for env, spaces in (("browser", BrowserEnv.spaces), ("desktop", DesktopEnv.spaces)):
        for space in spaces:
            config = {"actions": space, "shown": [640, 360], "picture": "jpeg", "quality": 60}
            assert EnvSpec(id=env, config={**config, "thousandths": True}).make()
    tools = {"answer", "computer", "give_up"}
    assert set(tools_of(EnvSpec(id="desktop").resolve())) == tools
    spec = EnvSpec(id="desktop", config={"clipboard": True})
    assert set(tools_of(spec.resolve())) == tools | {"read_clipboard", "set_clipboard"}
    with pytest.raises(InvalidInput, match="use one of anthropic"):
        EnvSpec(id="desktop", config={"actions": "elements"}).resolve()


def test_old_names_still_work_and_warn() -> None:
    """Old ids, classes and options remain as deprecated aliases, and so do moved names."""
    import trajgym.envs.gui as gui

    with pytest.warns(DeprecationWarning, match="actions='openai'"):
        assert EnvSpec(id="desktop-openai").make().space == "openai"  # type: ignore[attr-defined]
    with pytest.warns(DeprecationWarning, match="actions='ui-tars'"):
        assert issubclass(EnvSpec(id="desktop-ui-tars").resolve(), DesktopEnv)
    with pytest.warns(DeprecationWarning, match="picture"):
        assert EnvSpec(id="desktop", config={"form": "jpeg"}).make()
    with pytest.warns(DeprecationWarning, match="trajgym.envs.gui.actions"):
        assert gui.Click is Click
    with pytest.raises(AttributeError, match="no attribute"):
        gui.Klick  # noqa: B018
