"""Images from the session to the trainer: no placeholder is trained without its pixels."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.pictures import COLOURS, Screen, click, picture
from trajgym.adapters import export, read_rows
from trajgym.envs import EnvSpec, Reply, Sampled, Session
from trajgym.envs._ledger import TokenTail
from trajgym.rewards import Advantages, OutcomeReward, Rewards, TurnTable, get_deriver
from trajgym.rollout import FakeEngine, PolicyRejected, ScriptedPolicy, TokenPolicy, collect
from trajgym.rollout.engines import TokenEngine
from trajgym.rollout.rendering import ShownImage
from trajgym.trajectory import (
    Attempt,
    ImageRef,
    InvalidInput,
    InvalidRow,
    Run,
    Sampling,
    Segment,
    SessionRecord,
    SessionTree,
    Store,
    Task,
    Turn,
    UnsupportedModality,
    blob_hashes,
    build_rows,
    image_part,
    images_to_user,
    validate_row,
)

assert Screen
TASKS = [Task(id="a")]
SPEC = EnvSpec(id="test/screen")
SCRIPT: Any = [click(30, 40), click(50, 20), click(5, 5)]
PLACEHOLDER = 265


async def recorded(path: Path, policy: Any = None, spec: EnvSpec = SPEC) -> Path:
    """Return a run of two sessions that saw three pictures each."""
    out = path / "run"
    await collect(spec, TASKS, policy or TokenPolicy.fake(SCRIPT), out, samples=2)
    return out


def only(run: Run) -> SessionTree:
    return next(iter(run.sessions()))


async def test_rows_say_which_ids_are_which_image(tmp_path: Path) -> None:
    """From a stored run: spans hold exactly the placeholders, none trained, blobs in order."""
    with Run(await recorded(tmp_path)) as run:
        tree = only(run)
        (row,) = build_rows(tree, images=True).rows
        validate_row(row)
        assert row.turns == (0, 1, 2)
        shown = [run.blob(image.blob).data for image in row.images]
    assert shown == [picture(colour) for colour in COLOURS[:2]]
    marked = np.zeros(len(row), dtype=bool)
    for image in row.images:
        marked[image.start : image.end] = True
        assert image.processor == "bytes"
    assert np.array_equal(marked, row.input_ids == PLACEHOLDER)
    assert marked.any()
    assert not (marked & row.loss_mask).any()
    assert [i.blob for i in tree.images(tree.turns[2])] == [i.blob for i in row.images]


@pytest.mark.parametrize("form", ["PNG", "JPEG"])
async def test_pictures_are_kept_once_and_as_they_came(tmp_path: Path, form: str) -> None:
    """Two sessions that saw the same pictures share their bytes, in the format given."""
    spec = EnvSpec(id="test/screen", config={"form": form})
    with Run(await recorded(tmp_path, spec=spec)) as run:
        names = [
            list(blob_hashes(m for t in tree.turns for m in t.observation))
            for tree in run.sessions()
        ]
        assert names[0] == names[1]
        assert run.blob(names[0][2]) == (picture("blue", form=form), f"image/{form.lower()}")


async def test_rows_without_their_pixels_are_refused(tmp_path: Path) -> None:
    """Unless the caller passes pixels on, no row with placeholders is built."""
    with Run(await recorded(tmp_path)) as run:
        with pytest.raises(UnsupportedModality, match="must not be trained without them"):
            build_rows(only(run))


async def test_ids_for_other_images_than_shown_are_refused(tmp_path: Path) -> None:
    """A turn whose placeholders stand for another picture than its messages show has no row."""
    with Run(await recorded(tmp_path)) as run:
        tree = only(run)
    tokens = tree.turns[1].tokens
    assert tokens is not None
    tokens.images = tuple(image._replace(blob="0" * 64) for image in tokens.images)
    with pytest.raises(UnsupportedModality, match=r"turn 1 was shown 1 images .* stand for 1"):
        build_rows(tree, images=True)
    tokens.images = ()
    with pytest.raises(UnsupportedModality, match="which ids stand for it is not recorded"):
        build_rows(tree, images=True)


async def test_rows_with_misplaced_images_are_invalid(tmp_path: Path) -> None:
    """Images over trained tokens, over each other or outside of the row are refused."""
    with Run(await recorded(tmp_path)) as run:
        (row,) = build_rows(only(run), images=True).rows
    first, second = row.images
    trained = int(np.flatnonzero(row.loss_mask)[0])
    for images, reason in (
        ((first._replace(start=trained, end=trained + 2), second), "are trained"),
        ((first, second._replace(start=first.end - 1)), "the image before it ends"),
        ((first, second._replace(end=len(row) + 1)), "spans"),
    ):
        row.images = images
        with pytest.raises(InvalidRow, match=reason):
            validate_row(row)


def sampled(prompt: list[int], *images: ImageRef) -> Sampled:
    return Sampled(
        prompt_ids=prompt,
        response_ids=[7, 8],
        logprobs=[-1.0, -1.0],
        segments=(Segment(2, 0, 0),),
        images=images,
    )


async def test_another_picture_behind_the_same_ids_is_another_prompt(tmp_path: Path) -> None:
    """Equal placeholders of another picture break the prefix where that picture begins."""
    one, two = ImageRef(2, 5, "a" * 64, "p"), ImageRef(2, 5, "b" * 64, "p")
    prompt = [1, 2, 9, 9, 9, 3]
    async with Store(tmp_path) as store, Session(SPEC, TASKS[0], store=store) as session:
        await session.step(Reply(message=click(30, 40), sampled=sampled(prompt, one)))
        more = [*prompt, 7, 8, 4]
        await session.step(Reply(message=click(30, 40), sampled=sampled(more, one)))
        more = [*more, 7, 8, 4]
        await session.step(Reply(message=click(5, 5), sampled=sampled(more, two)))
    with Run(tmp_path) as run:
        tree = only(run)
    assert [turn.edge for turn in tree.turns] == ["continue", "continue", "rewrite"]
    assert [turn.tokens.prompt_kept for turn in tree.turns if turn.tokens] == [0, 8, 2]
    assert [tree.images(turn) for turn in tree.turns] == [[one], [one], [two]]
    assert tree.prompt(tree.turns[2]).tolist() == more


Piece = tuple[int, str]
"""An id of text and no blob, or how many placeholders and their blob."""


def spelled(pieces: list[Piece]) -> tuple[list[int], tuple[ImageRef, ...]]:
    """Return the ids and the images of pieces."""
    ids: list[int] = []
    images = []
    for number, blob in pieces:
        if blob:
            images.append(ImageRef(len(ids), len(ids) + number, blob, "p"))
        ids += [9] * number if blob else [number]
    return ids, tuple(images)


pieces = st.one_of(
    st.tuples(st.integers(1, 4), st.just("")),
    st.tuples(st.integers(1, 3), st.sampled_from("ab")),
)
edits = st.tuples(st.integers(0, 12), st.lists(pieces, min_size=1, max_size=4))


@given(st.lists(edits, min_size=1, max_size=6))
def test_prompts_with_images_come_back_from_their_deltas(history: list[Any]) -> None:
    """However contexts are cut and continued, ids and images read back unchanged."""
    tail, shown, turns, given_prompts = TokenTail(), list[Piece](), list[Turn](), []
    for index, (cut, more) in enumerate(history):
        whole = [*(shown if cut > 8 else shown[:cut]), *more]
        ids, images = spelled(whole)
        taken = tail.take(sampled(ids, *images))
        old_ids, old_images = spelled(shown)
        begins = [i for i in images if i.start < len(old_ids)]
        follows = ids[: len(old_ids)] == old_ids and begins == list(old_images)
        assert taken.broken is (index > 0 and not follows)
        given_prompts.append((ids, list(images)))
        message = {"role": "assistant", "content": ""}
        parent = index - 1 if index else None
        turns.append(Turn(index=index, parent=parent, message=message, tokens=taken.tokens))
        tail, shown = taken.tail, [*whole, (7, ""), (8, "")]
    record = SessionRecord(id="s", task="t", env={"id": "e"})
    tree = SessionTree(record, turns, [Attempt(leaf=len(turns) - 1)])
    for turn, (ids, held) in zip(turns, given_prompts, strict=True):
        assert tree.prompt(turn).tolist() == ids
        assert tree.images(turn) == held


async def test_a_sampled_placeholder_ends_the_session_by_name(tmp_path: Path) -> None:
    """A response that holds an image's placeholder has no pixels and is never recorded."""
    out = await recorded(tmp_path, TokenPolicy.fake([click(30, 40), "look <|image|>"]))
    with Run(out) as run:
        (attempt,) = only(run).attempts
    assert str(attempt.status) == "failed:policy"
    assert "sampled an image's placeholder (id 265)" in attempt.cause


async def test_text_that_spells_a_placeholder_is_text() -> None:
    """Text that an agent reads can't insert a placeholder: only images have them."""
    fake = FakeEngine()
    blob = "c" * 64
    texts = [{"type": "text", "text": "<|image|>\ufdd1" + blob + "\ufdd1"}, image_part(blob)]
    messages = [{"role": "user", "content": texts}]
    renderer = fake.renderer.showing({blob: picture("red")})
    (found,) = renderer.images_in(renderer.render(messages), messages)
    assert found.end - found.start == renderer.render(messages).count(PLACEHOLDER)


async def test_an_engine_for_text_refuses_images() -> None:
    """An engine that takes no pixels is not sent placeholders."""

    class Words(TokenEngine):
        name = "words"

        async def generate(self, *_: Any, **__: Any) -> Any:
            raise AssertionError("asked without pixels")

    shown = [ShownImage(ImageRef(0, 1, "a" * 64, "p"), b"")]
    with pytest.raises(PolicyRejected, match="'words' takes no images"):
        await Words().generate_seeing([1], shown, sampling=Sampling(), max_tokens=1, stop_ids=[2])


def values_of(run: Run, kind: str) -> Rewards | Advantages:
    table = TurnTable.build(run.groups(), run.sessions())
    return OutcomeReward().derive(table) if kind == "outcome" else get_deriver("grpo").derive(table)


@pytest.mark.parametrize("name", ["verl", "areal"])
async def test_pixels_go_along_to_trainers_that_take_them(tmp_path: Path, name: str) -> None:
    """The encoded bytes are stored with the ids; without the run's bytes, sessions are left out."""
    import pyarrow.parquet as pq

    with Run(await recorded(tmp_path)) as run:
        values = values_of(run, "outcome")
        given = (list(run.sessions()), list(run.groups()), tmp_path / name)
        allow = ["synthetic"]
        without = export(name, *given, values=values, allow=allow)
        assert (without.written, len(without.dropped)) == (0, 2)
        assert all("pass blobs=run.blob" in d.reason for d in without.dropped)
        done = export(name, *given, values=values, blobs=run.blob, allow=allow)
    assert done.written == 2
    for record in pq.read_table(done.files[0]).to_pylist():
        assert record["images"] == [picture(colour) for colour in COLOURS[:2]]
        for start, end, *_ in json.loads(record["image_refs"]):
            ids = record.get("input_ids") or record["prompts"] + record["responses"]
            assert set(ids[start:end]) == {PLACEHOLDER}


async def test_trainers_that_take_no_pixels_get_no_placeholders(tmp_path: Path) -> None:
    """TRL's token-level samples have no place for pixels: such sessions are left out by name."""
    with Run(await recorded(tmp_path)) as run:
        values = values_of(run, "grpo")
        given = (run.sessions(), run.groups(), tmp_path)
        options: dict[str, Any] = {"values": values, "blobs": run.blob, "allow": ["synthetic"]}
        done = export("trl-grpo", *given, **options)
    assert (done.written, len(done.dropped)) == (0, 2)
    assert all("does not carry their pixels" in dropped.reason for dropped in done.dropped)


async def test_neutral_rows_keep_their_references(tmp_path: Path) -> None:
    """Rows written to parquet come back with the same images."""
    with Run(await recorded(tmp_path)) as run:
        rows = [row for tree in run.sessions() for row in build_rows(tree, images=True).rows]
        done = export("rows", run.sessions(), run.groups(), tmp_path)
    assert [row.images for row in read_rows(done.files[0])] == [row.images for row in rows]


async def test_sft_with_picture_files(tmp_path: Path) -> None:
    """Conversations name the files; every image is one part of a user message."""
    with Run(await recorded(tmp_path, ScriptedPolicy(SCRIPT))) as run:
        given = (run.sessions(), run.groups(), tmp_path)
        with pytest.raises(InvalidInput, match="pass blobs"):
            export("sft", *given, images="files")
        done = export("sft", *given, images="files", blobs=run.blob)
    line = json.loads(done.files[0].read_text().splitlines()[0])
    roles = ["user", "assistant", "tool", "user", "assistant", "tool", "user", "assistant"]
    assert [message["role"] for message in line["messages"]] == roles
    assert [message["content"] for message in line["messages"][3::3]] == [[{"type": "image"}]] * 2
    assert [(tmp_path / path).read_bytes() for path in line["images"]] == [
        picture(colour) for colour in COLOURS[:2]
    ]
    assert len(list((tmp_path / "images").iterdir())) == 2


def test_images_of_tools_move_behind_their_results() -> None:
    """Tool messages stay together, keep their text, and their pictures come after them."""
    user, call = {"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}
    text = {"type": "text", "text": "seen"}
    one, two = image_part("a" * 64), image_part("b" * 64)
    moved = images_to_user(
        [
            {"role": "user", "content": [one]},
            call,
            {"role": "tool", "tool_call_id": "1", "content": [text, one]},
            {"role": "tool", "tool_call_id": "2", "content": [two]},
            user,
        ]
    )
    assert moved == [
        {"role": "user", "content": [one]},
        call,
        {"role": "tool", "tool_call_id": "1", "content": [text]},
        {"role": "tool", "tool_call_id": "2", "content": ""},
        {"role": "user", "content": [one, two]},
        user,
    ]
