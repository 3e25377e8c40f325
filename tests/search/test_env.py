"""The environments, played through sessions."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest

from tests.search.serving import answering, running
from trajgym.envs import Budgets, EnvSpec, Reply, Session, check_env
from trajgym.envs.search import SearchEnv, load_tasks
from trajgym.rewards import TreeGRPO, TurnTable
from trajgym.rewards.trees import tree_budget
from trajgym.rollout import Runner, ScriptedPolicy, TreeExpansion, call, collect, say
from trajgym.trajectory import InvalidInput, Run, Store, Task, Usage

if TYPE_CHECKING:
    from pathlib import Path

# Name a server of the built-in corpus (the container, say), and all this runs against it.
ENGINE = os.environ.get("TRAJGYM_SEARCH_URL", "builtin")
TOOLS, TAGS = (EnvSpec(id=name, config={"engine": ENGINE}) for name in ("search", "search-tags"))
TASKS = {task.id: task for task in load_tasks("builtin")}
TASK = TASKS["reach-01"]
GOLD = TASK.data["gold"]


def seen(session: Session) -> str:
    return str(session.turns[-1].observation[0]["content"])


def signals(session: Session) -> dict[str, Any]:
    return dict(session.turns[-1].signals)


@pytest.mark.parametrize("spec", [TOOLS, TAGS], ids=["tools", "tags"])
async def test_conformance(spec: EnvSpec) -> None:
    """Both environments keep every promise that sessions and forks rely on."""
    await check_env(spec, TASK, spec.resolve().script(TASK, 4)[:-1])


@pytest.mark.parametrize("spec", [TOOLS, TAGS], ids=["tools", "tags"])
async def test_scripted_searchers(spec: EnvSpec, tmp_path: Path) -> None:
    """Groups have mixed outcomes; agents that search find the support, agents that guess don't."""
    tasks = [TASKS["reach-01"], TASKS["reach-31"], TASKS["reach-50"]]
    env = spec.resolve()

    def script(request: Any) -> Any:
        turn = sum(m["role"] == "assistant" for m in request.messages)
        return env.script(request.task, request.sample)[turn]

    await collect(spec, tasks, ScriptedPolicy(script), tmp_path, samples=6)
    with Run(tmp_path) as run:
        for tree in run.sessions():
            attempt = tree.attempts[0]
            assert str(attempt.status) == "completed", attempt.cause
            assert attempt.outcome is not None
            sample = tree.record.sample
            assert attempt.outcome.passed == (sample in {0, 2, 4})
            recall = attempt.outcome.details["support_recall"]
            assert recall == 0.0 if sample == 1 else recall > 0
            assert recall == 1.0 or sample in {1, 3}
            if sample == 5:
                assert attempt.outcome.details["cover"] == 1.0
                assert 0 < attempt.outcome.details["f1"] < 1


async def test_no_gold_passage_in_the_prompt() -> None:
    """An agent starts with the question, not with the passages, titles or answers behind it."""
    for task in list(TASKS.values())[::5]:
        async with Session(TOOLS, task) as session:
            prompt = str(session.messages[0]["content"])
        assert task.data["question"] in prompt
        hidden = [title for title in task.data["gold_titles"] if title not in task.data["question"]]
        assert not [title for title in hidden if title in prompt]
        assert not set(task.data["gold"]) & set(prompt.split())


async def test_several_searches_in_one_turn_and_what_is_left_is_told() -> None:
    """Each call has its result, and the searches left count down in order."""
    async with Session(TOOLS, TASK) as session:
        await session.step(
            say("", ("search", {"query": "Jorollen Chronicle"}), ("search", {"query": "Berrick"}))
        )
        results = [str(m["content"]) for m in session.turns[-1].observation]
        assert "Title: The Jorollen Chronicle" in results[0]
        assert "Orliomar Berrick" in results[1]
        assert "[7 searches left of 8, 11 turns left]" in results[0]
        assert "[6 searches left of 8, 11 turns left]" in results[1]
        assert signals(session)["support_recall"] == 1.0
        assert set(GOLD) <= set(signals(session)["seen"])


async def test_the_search_budget_ends_the_searching_not_the_attempt() -> None:
    """With no searches left, the agent is asked to answer, and can."""
    spec = EnvSpec(id="search", config={"engine": ENGINE, "searches": 1})
    async with Session(spec, TASK) as session:
        await session.step(call("search", query="Chronicle"))
        assert seen(session).endswith("[no searches left of 1, 11 turns left]")
        await session.step(call("search", query="Berrick"))
        assert seen(session).startswith("Error: no searches left of 1")
        assert seen(session).endswith("answer with what you know")
        assert session.turns[-1].calls[0].status == "error"
        await session.step(call("answer", answer=f"the {TASK.data['answers'][0]}."))
        assert session.outcome is not None
        assert session.outcome.passed


async def test_more_searches_than_remain() -> None:
    """Both protocols make the searches that are left, in order, and refuse only the others."""
    queries = ["Jorollen Chronicle", "?!", "Orliomar Berrick", "salt"]
    config = {"engine": ENGINE, "searches": 2}
    async with Session(EnvSpec(id="search", config=config), TASK) as session:
        await session.step(say("", *(("search", {"query": query}) for query in queries)))
        told = [str(m["content"]) for m in session.turns[-1].observation]
        tools = signals(session)
    async with Session(EnvSpec(id="search-tags", config=config), TASK) as session:
        await session.step("".join(f"<search>{query}</search>" for query in queries))
        tagged = seen(session).split("<information>")[1:]
        tags = signals(session)
    for results in (told, tagged):
        assert "Title: The Jorollen Chronicle" in results[0]
        assert "Error: the query is empty" in results[1]
        assert "Title: Orliomar Berrick" in results[2]
        assert "Error: no searches left of 2" in results[3]
    assert tools == tags
    assert (tools["searches"], tools["support_recall"]) == (2, 1.0)


async def test_observations_are_capped_in_tokens() -> None:
    """A result keeps to its tokens, shared between its documents; open shows the rest."""
    spec = EnvSpec(id="search", config={"engine": ENGINE, "observation_tokens": 12, "k": 3})
    async with Session(spec, TASK) as session:
        await session.step(call("search", query="Jorollen Chronicle"))
        lines = seen(session).splitlines()
        assert len(lines) == 4
        assert all(line.endswith(" [...]") and len(line.split("] ")[1].split()) <= 6
                   for line in lines[:3])  # fmt: skip
        pages = []
        for window in (1, 2, 3):
            await session.step(call("open", doc=GOLD[0], window=window))
            pages.append(seen(session).splitlines()[1])
        assert seen(session).endswith(f"[window 3 of {int(seen(session).split()[-1][:-1])}]")
        assert "The Jorollen Chronicle is a novel by Orliomar Berrick, published" in " ".join(pages)
        assert signals(session)["opened"] == 3


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (call("search", query=" ?! "), "the query is empty"),
        (call("open", doc="w999"), "there is no document 'w999'"),
        ({"role": "assistant", "content": "It is Orlundrath."}, "That was no tool call"),
        (call("search", query="\ud800 salt"), "Title:"),
    ],
)
async def test_slips_are_answered(message: Any, said: str) -> None:
    """An agent that makes a mistake reads the error, and can continue."""
    async with Session(TOOLS, TASK) as session:
        await session.step(message)
        assert said in seen(session)
        assert not session.done


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("<think>hm</think><search>Jorollen Chronicle</search>", "Title: The Jorollen Chronicle"),
        ("<search>salt</search> and <search>eel</search>", "</information>\n\n\n\n<information>"),
        ("<search>salt</search><information>x</information><answer>x</answer>", "7 searches left"),
        ("<search>salt</search><answer>too early</answer>", "7 searches left"),
        ("<think><answer>no</answer></think>", "That held no action"),
        ("Orlundrath", "That held no action"),
        ("<search> </search>", "the query is empty"),
        ("<think>never closed <search>salt</search>", "That held no action"),
    ],
)
async def test_tags(text: str, said: str) -> None:
    """Searches in free text are carried out; thoughts, made-up results and rash answers are not."""
    async with Session(TAGS, TASK) as session:
        await session.step(text)
        assert said in seen(session)
        assert not session.done


async def test_a_tagged_answer_ends_the_attempt() -> None:
    """The first answer counts."""
    async with Session(TAGS, TASK) as session:
        await session.step("<answer>Orlundrath</answer><answer>Belanvik</answer>")
        assert session.outcome is not None
        assert session.outcome.score == 1.0


async def test_without_an_answer_nothing_is_scored() -> None:
    """An attempt that runs out of turns is verified: score 0, with its recall."""
    async with Session(TOOLS, TASK, budgets=Budgets(turns=2)) as session:
        for query in ("Jorollen Chronicle", "Orliomar Berrick"):
            await session.step(call("search", query=query))
    assert str(session.status) == "truncated:turns"
    assert session.outcome is not None
    assert session.outcome.score == 0.0
    assert session.outcome.details["support_recall"] == 1.0


async def test_a_dead_engine_is_not_the_agents_fault() -> None:
    """The session ends failed:search, unscored."""
    config = {"engine": {"kind": "retrieval", "url": "http://127.0.0.1:9", "tries": 1}}
    async with Session(EnvSpec(id="search", config=config), TASK) as session:
        await session.step(call("search", query="salt"))
    assert str(session.status) == "failed:search"
    assert session.outcome is None


@pytest.mark.parametrize(
    "config", [{"k": 0}, {"metric": "bleu"}, {"metric": "judge"}, {"engine": "nowhere"}]
)
async def test_bad_settings_fail_before_the_first_turn(config: dict[str, Any]) -> None:
    """What is wrong with the settings ends the run, not each session."""
    with pytest.raises(InvalidInput):
        await SearchEnv.open_run(config)


async def test_a_judge(index: Path) -> None:
    """A judge is asked what matching does not settle; its verdict is recorded or is the score."""
    asked: list[str] = []

    async def completions(request: Any) -> Any:
        body = await request.json()
        asked.append(body["messages"][0]["content"])
        verdict = "Yes." if "so to say" in asked[-1] else "no"
        message = {"role": "assistant", "content": verdict}
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        return {"id": "1", "object": "chat.completion", "created": 0, "model": "j",
                "choices": [choice]}  # fmt: skip

    async with running(answering("/v1/chat/completions", completions)) as url:
        judge = {"base_url": f"{url}/v1", "model": "j"}
        spec = EnvSpec(id="search", config={"engine": ENGINE, "judge": judge, "metric": "judge"})
        for answer, score in (("Orlundrath, so to say", 1.0), ("Belanvik", 0.0), (" ", 0.0)):
            async with Session(spec, TASK) as session:
                await session.step(call("answer", answer=answer))
            assert session.outcome is not None
            assert (session.outcome.score, session.outcome.details["em"]) == (score, 0.0)
        async with Session(spec, TASK) as session:
            await session.step(call("answer", answer="orlundrath"))
        assert session.outcome is not None
        assert session.outcome.score == 1.0
    assert len(asked) == 2


@pytest.mark.parametrize("name", ["search", "search-tags"])
async def test_citations_are_scored(name: str) -> None:
    """Were the cited passages shown, do they hold the answer, are they the supporting ones."""
    spec = EnvSpec(id=name, config={"engine": ENGINE, "citations": True})
    tags = name == "search-tags"
    answer = TASK.data["answers"][0]
    # The first is never shown, the second is shown and holds the answer.
    for cited, expected in {
        (GOLD[1],): (1, 1.0, 1.0, 1.0, 0.5),
        ("w300", GOLD[1]): (2, 0.5, 1.0, 0.5, 0.5),
        (GOLD[0],): (1, 1.0, 0.0, 1.0, 0.5),
        ("nonsense",): (1, 0.0, 0.0, 0.0, 0.0),
    }.items():
        async with Session(spec, TASK) as session:
            assert "ids" in str(session.messages[0]["content"])
            for query in ("The Jorollen Chronicle novel", "Orliomar Berrick"):
                await session.step(
                    f"<search>{query}</search>" if tags else call("search", query=query)
                )
                assert "[doc: " in seen(session)
            last = f"<answer>{answer} <cite>{', '.join(cited)}</cite></answer>"
            await session.step(
                last if tags else call("answer", answer=answer, citations=list(cited))
            )
        assert session.outcome is not None
        details = session.outcome.details
        assert (session.outcome.score, details["cited"]) == (1.0, list(cited))
        assert tuple(
            details[key]
            for key in ("citations", "citation_retrieved", "citation_holds_answer",
                        "citation_precision", "citation_recall")
        ) == expected  # fmt: skip


async def test_forks_are_free(tmp_path: Path) -> None:
    """A fork from a snapshot has the same budget left and the same passages seen."""
    async with Session(TOOLS, TASK, snapshot_every=1) as session:
        await session.step(call("search", query="Jorollen Chronicle"))
        await session.step(call("search", query="Orliomar Berrick"))
        async with await session.fork(0) as rival:
            await rival.step(call("search", query="Orliomar Berrick"))
            assert rival.turns[-1].observation[0]["content"] == seen(session)
            assert signals(rival) == signals(session)


@pytest.mark.parametrize(("trees", "nodes", "rounds"), [(2, 2, 1), (3, 1, 2), (1, 3, 2), (2, 4, 1)])
async def test_tree_grpo_expansion(tmp_path: Path, trees: int, nodes: int, rounds: int) -> None:
    """The runner grows M trees with N nodes in each of L rounds: M * (L * N + 1) scored leaves."""

    def follow(request: Any) -> Any:
        # Rivals with an odd number give up; the others go on as the script does.
        wrong = call("answer", answer="nobody knows")
        return wrong if request.attempt % 2 else SearchEnv.script(TASK, 0)[request.turn]

    expansion = TreeExpansion(nodes=nodes, rounds=rounds)
    async with Store(tmp_path) as store:
        policy = ScriptedPolicy(follow)
        async with Runner(
            TOOLS, [TASK], policy, store=store, samples=trees, expansion=expansion
        ) as runner:
            groups = [group async for group in runner]
    ((group, grown),) = groups
    attempts = [attempt for tree in grown for attempt in tree.attempts]
    assert {str(attempt.status) for attempt in attempts} == {"completed"}
    assert len(attempts) == tree_budget(trees, nodes, rounds).leaves
    assert len(attempts) == trees * (rounds * nodes + 1)
    table = TurnTable.build([group], grown)
    advantages = TreeGRPO().derive(table)
    leaves = {(tree.record.id, a.leaf): a for tree in grown for a in tree.attempts}
    assert len(leaves) == len(attempts)
    values = dict(
        zip(
            [(t.record.id, turn.index) for t in grown for turn in t.turns],
            advantages.values,
            strict=True,
        )
    )
    right = [values[key] for key, attempt in leaves.items() if attempt.outcome.passed]
    wrong = [values[key] for key, attempt in leaves.items() if not attempt.outcome.passed]
    assert min(right) > 0 > max(wrong)


async def test_the_turns_and_tokens_left_are_told() -> None:
    """Results and the first message show the remaining budgets, also in a replayed fork."""
    budgets = Budgets(turns=4, completion_tokens=100, reasoning_tokens=20)
    look = call("search", query="Jorollen Chronicle")
    async with Session(TOOLS, TASK, budgets=budgets) as session:
        opening = str(session.messages[0]["content"])
        assert "8 searches (4 turns left, 100 tokens left, 20 reasoning tokens left)" in opening
        usage = Usage(prompt_tokens=9, completion_tokens=30, reasoning_tokens=10)
        await session.step(Reply(message=look, usage=usage))
        assert seen(session).endswith(
            "[7 searches left of 8, 3 turns left, 70 tokens left, 10 reasoning tokens left]"
        )
        await session.step(look)
        async with await session.fork(1) as rival:
            await rival.step(look)
            assert "[5 searches left of 8, 1 turn left, 70 tokens left," in seen(rival)


def test_scripts_are_for_any_search_task() -> None:
    """A task without hops or gold passages has a script too."""
    task = Task(id="x", data={"question": "Who?", "answers": ["Ann"]})
    last = SearchEnv.script(task, 0)[-1]["tool_calls"][0]["function"]
    assert json.loads(last["arguments"]) == {"answer": "Ann"}
