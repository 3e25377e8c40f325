"""Elements of pages: what is listed, where it is, and how it is used."""

from __future__ import annotations

import io

import pytest
from PIL import Image

from tests.gui.browser.pages import at, item
from tests.gui.solver import Item, read_tree
from trajgym.envs.gui import Browser, PictureForm
from trajgym.envs.gui.actions import (
    Click,
    Drag,
    Element,
    Fill,
    GoTo,
    Move,
    Point,
    PressKeys,
    Scroll,
    SelectOption,
    SetChecked,
    Size,
)
from trajgym.envs.gui.browser import draw_marks

pytestmark = [pytest.mark.docker, pytest.mark.asyncio(loop_scope="module")]


async def test_elements_are_used_by_their_ids(browser: Browser) -> None:
    """Actions on fields, lists, boxes and buttons have their effects, and the tree shows them."""
    look = await browser.look()
    look = await browser.act(
        [
            Fill(item(look, "textbox", "Name"), "Ann"),
            SelectOption(item(look, "combobox", "Colour"), ("blue",)),
            SetChecked(item(look, "checkbox", "Agreed"), checked=True),
            Click(item(look, "button", "Press")),
        ]
    )
    assert look.errors == ("", "", "", "")
    assert look.found == (True, True, True, True)
    assert look.title == "clicked"
    for line in ('textbox "Name" value="Ann"', 'combobox "Colour" value="blue"', "checked=true"):
        assert line in look.tree
    assert look.focused == item(look, "button", "Press").id


async def test_ids_stay_with_their_elements(browser: Browser) -> None:
    """Elements that the page adds get new ids; ids of a page end with it."""
    before = await browser.look()
    after = await browser.act([Click(item(before, "button", "More"))])
    old, new = read_tree("", before.tree).items, read_tree("", after.tree).items

    def plain(items: list[Item]) -> set[tuple[str, str, str]]:
        return {(one.id, one.role, one.name) for one in items}

    assert plain(old) < plain(new)
    gone = item(after, "button", "New")
    again = await browser.act([GoTo("http://pages.test/"), Click(gone)])
    assert again.found == (False,)
    assert "no element" in again.errors[1]
    assert not {one.id for one in read_tree("", again.tree).items} & {one.id for one in new}


async def test_equal_pages_have_equal_digests(browser: Browser) -> None:
    """The digest differs between pages, not between visits, whose pictures are equal."""
    form = PictureForm(form="png")
    one = await browser.look(form)
    two = await browser.act([GoTo("http://pages.test/")], form)
    assert (one.digest, one.picture) == (two.digest, two.picture)
    three = await browser.act([Fill(item(two, "textbox", "Name"), "x")], form)
    assert three.digest != two.digest
    assert three.mark != two.mark


async def test_pictures(browser: Browser) -> None:
    """A picture has the requested format and size; marks are drawn on the elements."""
    for form, size in (("png", None), ("jpeg", Size(640, 360))):
        wanted = PictureForm(form=form, size=size)  # type: ignore[arg-type]
        look = await browser.look(wanted, boxes=True)
        assert look.picture is not None
        with Image.open(io.BytesIO(look.picture.data)) as picture:
            assert picture.format == form.upper()
            assert picture.size == (size or Size(1280, 720))
        marked = draw_marks(look.picture, look.boxes, browser.size)
        assert marked.data != look.picture.data
    assert item(look, "button", "Press").id in look.boxes
    assert len(look.boxes) == 5


async def test_what_lies_under_something_is_not_clicked(browser: Browser) -> None:
    """The error of a click on a covered element names the element that covers it."""
    look = await at(browser, "covered")
    look = await browser.act([Click(item(look, "button", "Below"))])
    assert look.errors[0].endswith("is covered by div #over")


async def test_elements_are_scrolled_into_view(browser: Browser) -> None:
    """An element outside of the view can be used by its id, and the wheel scrolls the page."""
    look = await at(browser, "long")
    look = await browser.act([Click(item(look, "button", "End"))])
    assert look.title == "end"
    await browser.act([Scroll(Point(100, 100), 0, -5000), Scroll(None, 0, 700)])
    assert await browser.evaluate("() => scrollY") == 700


async def test_frames_are_part_of_the_tree(browser: Browser) -> None:
    """Elements of a frame have ids, too, and can be clicked."""
    look = await at(browser, "frame")
    look = await browser.act([Click(item(look, "button", "Inside"))])
    assert look.title == "inner"


async def test_mouse(browser: Browser) -> None:
    """The page receives buttons, double clicks, drags and modifiers."""
    await at(browser, "mouse")
    look = await browser.act([Click(Point(50, 50), "right", keys=("Shift",))])
    assert look.title == "mousedown:2 contextmenu:2 mouseup:2 shift"
    await at(browser, "mouse")
    look = await browser.act([Click(Point(50, 50), count=2)])
    assert look.title.endswith("dblclick:0")
    await at(browser, "mouse")
    look = await browser.act([Drag((Point(50, 50), Point(200, 100))), Move(Point(300, 200))])
    steps = look.title.split()
    assert (steps[0], steps[-1], set(steps[1:-1])) == ("mousedown:0", "mouseup:0", {"mousemove:0"})
    assert look.pointer == (300, 200)


async def test_areas_of_image_maps_are_clicked(browser: Browser) -> None:
    """Areas have places on their image, and are clicked at their middle."""
    look = await at(browser, "map")
    for name in ("Corner", "Round"):
        look = await browser.act([Click(item(look, "link", name))], boxes=True)
        assert look.errors == ("",)
        assert look.url.endswith(f"#{ {'Corner': 'area'}.get(name, 'round') }")
    framed = await at(browser, "framed-map")
    look = await browser.act([Click(item(framed, "link", "Round"))])
    assert (look.errors, look.title) == (("",), "#round")
    look = await at(browser, "map")
    look = await browser.act([Click(item(look, "link", "Round"))], boxes=True)
    left, _, width, height = next(one.box for one in look.elements if one.name == "Round")
    image = next(one.box for one in look.elements if one.role == "image")
    assert (left - image[0], width, height) == (55, 40, 40)
    assert {"Corner", "Round"} <= {one.name for one in look.elements if one.id in look.boxes}


async def test_elements_in_shadow_trees_are_clicked(browser: Browser) -> None:
    """Listed elements of closed shadow trees and of the browser's own controls can be used."""
    look = await at(browser, "shadow")
    assert (await browser.act([Click(item(look, "button", "Inner"))])).title == "inner"
    parts = [i.at for i in read_tree("", look.tree).items if i.role in {"spinbutton", "button"}]
    look = await browser.act([Click(part) for part in parts])
    assert set(look.errors) == {""}
    look = await browser.act(
        [PressKeys(("Escape",)), Click(item(look, "DisclosureTriangle", "More"))]
    )
    assert (look.errors, look.title) == (("", ""), "opened")


async def test_whatever_can_be_clicked_has_an_id(browser: Browser) -> None:
    """Cells, boxes, icons and shapes without a text have ids, by which they can be used."""
    await at(browser, "icons")
    look = await browser.look(boxes=True, html_chars=5_000)
    able = [one for one in look.elements if one.clickable]
    unnamed = ["clickable"] * 4 + ["graphics-symbol"] * 2
    assert [one.role for one in able] == [*unnamed, "clickable"]
    for hint in ('id="box"', 'class="icon-trash"', 'fill="red"', 'fill="blue"', "Hidden box"):
        assert hint in look.tree
        assert hint in look.html
    look = await browser.act([Click(Element(one.id)) for one in able])
    assert look.title.startswith("TD,TD,DIV,I,circle,circle,LABEL,")


async def test_marks_cover_frames_and_stop_behind_a_modal(browser: Browser) -> None:
    """Positions are those on the screen, also in frames; elements behind a modal are covered."""
    await at(browser, "frame")
    look = await browser.look(boxes=True)
    (x, y, width, height) = look.boxes[item(look, "button", "Inside").id]
    look = await browser.act([Click(Point(round(x + width / 2), round(y + height / 2)))])
    assert look.title == "inner"
    await at(browser, "modal")
    look = await browser.look(boxes=True)
    assert list(look.boxes) == [item(look, "button", "Confirm").id]
    assert {one.name for one in look.elements if one.clickable and one.covered} == {
        "Behind",
        "Inside",
    }


async def test_a_large_page_is_listed_where_it_is_looked_at(browser: Browser) -> None:
    """Of 15,000 elements, those in view are listed, and scrolling lists the others."""
    look = await at(browser, "huge")
    assert "the page has 15004 elements" in look.tree
    assert (await browser.act([Click(item(look, "button", "Top"))])).title == "1"
    look = await browser.act([Scroll(None, 0, 3000)])
    names = [one.name for one in read_tree("", look.tree).items if one.role == "link"]
    assert 10 < len(names) < 100
    assert "Item 1" not in names
    assert (await browser.act([Click(item(look, "link", names[5]))])).errors == ("",)
