"""The agent loop: real class, real configuration, servers without a model."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.clock import Forward
from tests.conftest import load_golden
from tests.trl.tiny import Words, calls, tasks
from tests.verl.chain import PROMPT, RESPONSE, loop, row, sampling
from tests.verl.fake import FakeServers
from trajgym.adapters.verl import RolloutFailed
from trajgym.adapters.verl._rows import split
from trajgym.envs import EnvSpec, register
from trajgym.trajectory import InvalidRow, Run, Task, build_rows

WORDS = EnvSpec(id="tests.trl.tiny:Words")
(TASK,) = tasks(1)


def stored(folder: Path) -> list[Any]:
    """Return the sessions that worker processes recorded in a folder."""
    with Run(folder) as run:
        return list(run.sessions())


async def test_the_output_is_what_was_sampled(tiny: Any, tmp_path: Path) -> None:
    """Ids, mask, log-probs and versions are those that the servers gave, as they were recorded."""
    servers = FakeServers(version=3, span=2)
    made = loop(tiny, servers, f"+trajgym.store={tmp_path}")
    (output,) = await made.run(sampling(), **row(TASK, WORDS, session=2))
    (tree,) = stored(tmp_path)
    (whole,) = build_rows(tree).rows
    assert output.prompt_ids + output.response_ids == whole.input_ids.tolist()
    assert output.prompt_ids == servers.requests[0][1]
    start = len(output.prompt_ids)
    assert [bool(m) for m in output.response_mask] == whole.loss_mask[start:].tolist()
    assert output.response_logprobs == whole.logprobs[start:].tolist()
    sampled = sum(len(turn.tokens.response_ids) for turn in tree.turns)
    assert sum(output.response_mask) == sampled
    assert (output.extra_fields["min_global_steps"], output.extra_fields["max_global_steps"]) == (
        3,
        5,
    )
    assert output.response_mask[-1] == 1


async def test_one_request_id_and_growing_prompts(tiny: Any) -> None:
    """All turns of a session go to one replica, and each prompt keeps the ids of the last."""
    servers = FakeServers()
    await loop(tiny, servers).run(sampling(), **row(TASK, WORDS))
    names, prompts, params = zip(*servers.requests, strict=True)
    assert len(set(names)) == 1
    assert all(later[: len(one)] == one for one, later in itertools.pairwise(prompts))
    assert all(p["temperature"] == 1.0 and p["logprobs"] for p in params)


async def test_rewards_stand_on_the_turns_last_tokens(tiny: Any) -> None:
    """Dense rewards become rm_scores, each on its turn's last sampled id, and nowhere else."""
    rewards = "[{name:outcome},{name:step_reward}]"
    made = loop(tiny, FakeServers(), f"+trajgym.rewards={rewards}")
    (output,) = await made.run(sampling(), **row(TASK, WORDS, session=2))
    fields = output.as_dict()
    scores, mask = fields["rm_scores"].tolist(), fields["response_mask"].tolist()
    ends = [i for i, m in enumerate(mask) if m and (i + 1 == len(mask) or not mask[i + 1])]
    assert [scores[i] for i in ends] == pytest.approx([1.0, 1.0, 2 / 3])
    assert [i for i, value in enumerate(scores) if value] == ends
    assert output.reward_score == pytest.approx(8 / 3)
    assert output.extra_fields["turn_scores"] == [scores[i] for i in ends]
    assert output.extra_fields["reward_extra_info"]["trajgym_score"] == pytest.approx(2 / 3)


async def test_a_failure_gives_no_row(tiny: Any, caplog: pytest.LogCaptureFixture) -> None:
    """A session whose environment fails gives an empty list, not a zero, and logs the cause."""
    broken = EnvSpec(id=WORDS.id, config={"fail": "tool"})
    servers = FakeServers(lambda call: calls("note", text="x"))
    with caplog.at_level(logging.WARNING):
        assert await loop(tiny, servers).run(sampling(), **row(TASK, broken)) == []
    assert "failed:env" in caplog.text
    assert "the pen is broken" in caplog.text


async def test_a_failed_session_is_tried_again(tiny: Any, tmp_path: Path) -> None:
    """With retries, a session whose servers failed once gives its row after all."""

    class Shaky(FakeServers):
        async def generate(self, request_id: str, **more: Any) -> Any:
            if not self.requests:
                self.requests.append((request_id, [], {}))
                raise ConnectionError("replica gone")
            return await super().generate(request_id, **more)

    made = loop(tiny, Shaky(), "+trajgym.retries=1", f"+trajgym.store={tmp_path}")
    (output,) = await made.run(sampling(), **row(TASK, WORDS, session=1))
    assert output.reward_score == pytest.approx(1 / 3)
    assert sorted(str(tree.attempts[0].status) for tree in stored(tmp_path)) == [
        "failed:policy",
        "truncated:turns",
    ]
    with Run(tmp_path) as run:
        (group,) = run.groups()
    assert [member.left for member in group.members] == ["failed:policy", ""]
    assert not group.sealed


async def test_a_session_has_a_deadline(tiny: Any, tmp_path: Path, forward: Forward) -> None:
    """An environment that never answers ends its session, which gives no row and is closed."""
    closed, hung = Words.closed, Words.hanging
    hanging = EnvSpec(id=WORDS.id, config={"hang": True})
    made = loop(tiny, FakeServers(), "+trajgym.deadline=300", f"+trajgym.store={tmp_path}")
    running = asyncio.create_task(made.run(sampling(), **row(TASK, hanging)))
    async with asyncio.timeout(240):
        while Words.hanging == hung:
            await asyncio.sleep(0.01)
    forward(400)
    assert await running == []
    (tree,) = stored(tmp_path)
    assert str(tree.attempts[0].status) == "failed:deadline"
    assert Words.closed == closed + 1


async def test_cancelling_closes_the_environment(tiny: Any) -> None:
    """A cancelled rollout passes the cancellation on, and its environment is closed by then."""
    opened, closed = Words.opened, Words.closed
    hanging = EnvSpec(id=WORDS.id, config={"hang": True})
    servers = FakeServers()
    running = asyncio.create_task(loop(tiny, servers).run(sampling(), **row(TASK, hanging)))
    async with asyncio.timeout(240):
        while not servers.requests:
            await asyncio.sleep(0.01)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert (Words.opened - opened, Words.closed - closed) == (1, 1)


@pytest.mark.parametrize(
    ("overrides", "entry", "env", "said"),
    [
        (["+trajgym.env.id=tests.trl.tiny:Words"], {}, WORDS, "set it once"),
        ([], {}, None, "set nowhere"),
        (["+trajgym.max_tokens=5"], {"max_tokens": 6}, WORDS, "remove one of them"),
        (["+trajgym.maximum=5"], {}, WORDS, "maximum"),
        (["+trajgym.rewards=[{name:grpo}]"], {}, WORDS, "trajgym.deriver"),
        (["+trajgym.deriver.name=gigpo"], {}, WORDS, "trajgym_sync"),
        (["+trajgym.expansion.name=tree"], {}, WORDS, "trajgym.deriver"),
    ],
)
async def test_a_wrong_configuration_is_named_and_gives_no_row(
    tiny: Any,
    caplog: pytest.LogCaptureFixture,
    overrides: list[str],
    entry: dict[str, Any],
    env: EnvSpec | None,
    said: str,
) -> None:
    """Settings given twice, nowhere or without effect start no session; the log names them."""
    opened = Words.opened
    assert (
        await loop(tiny, FakeServers(), *overrides, **entry).run(sampling(), **row(TASK, env)) == []
    )
    assert said in caplog.text
    assert Words.opened == opened


async def test_settings_of_a_yaml_entry(tiny: Any) -> None:
    """An agent loop's own entry can hold the environment and every setting."""
    servers = FakeServers(lambda call: "yes it is")
    entry = {"env": {"id": WORDS.id}, "max_tokens": 3, "budgets": {"turns": 2}}
    (output,) = await loop(tiny, servers, **entry).run(sampling(), **row(TASK, None))
    assert [params["max_tokens"] for _, _, params in servers.requests] == [3]
    assert output.extra_fields["reward_extra_info"]["trajgym_turns"] == 1.0


@pytest.mark.parametrize(
    ("limits", "most"),
    [
        (["data.max_prompt_length=300", "data.max_response_length=24"], 324),
        (["actor_rollout_ref.rollout.max_model_len=325"], 324),
    ],
)
async def test_a_full_context_ends_the_session_scored(
    tiny: Any, tmp_path: Path, limits: list[str], most: int
) -> None:
    """A session that fills the rows' lengths, or the servers', is cut there and scored."""
    made = loop(tiny, FakeServers(), *limits, f"+trajgym.store={tmp_path}")
    (output,) = await made.run(sampling(), **row(TASK, WORDS, session=3))
    assert len(output.prompt_ids) + len(output.response_ids) <= most
    (tree,) = stored(tmp_path)
    assert tree.attempts[0].status.kind == "truncated"
    assert str(tree.attempts[0].status) != "truncated:turns"
    assert tree.attempts[0].outcome is not None


async def test_a_prompt_that_is_too_long_fails(tiny: Any, caplog: pytest.LogCaptureFixture) -> None:
    """A first prompt over max_prompt_length is refused, not cut from the left as verl does."""
    made = loop(tiny, FakeServers(), "data.max_prompt_length=8")
    assert await made.run(sampling(), **row(TASK, WORDS)) == []
    assert "data.max_prompt_length is 8" in caplog.text


async def test_servers_without_logprobs_fail(tiny: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Without log-probs there is no row, and the log names the setting to change."""
    servers = FakeServers(logprobs=False)
    assert await loop(tiny, servers).run(sampling(), **row(TASK, WORDS)) == []
    assert "calculate_log_probs" in caplog.text


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"top_p": 0.7}, "cut the distribution"),
        ({"temperature": 0.0}, "cut the distribution"),
        ({"temperature": 0.7, "logprobs_mode": "raw_logprobs"}, "taken before temperature"),
    ],
    ids=["top_p", "greedy", "raw"],
)
async def test_log_probs_of_another_distribution_give_no_row(
    tiny: Any, caplog: pytest.LogCaptureFixture, changes: dict[str, Any], reason: str
) -> None:
    """Rows that verl's loss would take for others are refused by name, or let through by name."""
    options = [f"actor_rollout_ref.rollout.{key}={value}" for key, value in changes.items()]
    params = sampling() | {k: v for k, v in changes.items() if k != "logprobs_mode"}
    assert await loop(tiny, FakeServers(), *options).run(params, **row(TASK, WORDS)) == []
    assert reason in caplog.text
    allow = "+trajgym.allow=[cut-distribution,raw-logprobs]"
    (output,) = await loop(tiny, FakeServers(), *options, allow).run(params, **row(TASK, WORDS))
    assert sum(output.response_mask) > 0


@pytest.mark.parametrize(
    "option",
    [
        "+{}.engine_kwargs.vllm.logprobs_mode=raw_logprobs",
        "{}.logprobs_mode=processed_logits",
        "{}.logprobs_mode=null",
    ],
)
async def test_log_probs_of_a_kind_that_is_not_asked_for_give_no_row(
    tiny: Any, caplog: pytest.LogCaptureFixture, option: str
) -> None:
    """An argument of vLLM overrides verl's setting, null is vLLM's default, and logits are none."""
    key = "actor_rollout_ref.rollout"
    options = [option.format(key), f"{key}.temperature=0.7", f"{key}.name=vllm"]
    params = sampling() | {"temperature": 0.7}
    assert await loop(tiny, FakeServers(), *options).run(params, **row(TASK, WORDS)) == []
    assert "log-probs" in caplog.text


async def test_full_determinism_keeps_the_sessions_of_a_group_apart(tiny: Any) -> None:
    """With verl's seed they would be equal; ours differ, and are the same in every run."""
    options = ["actor_rollout_ref.rollout.full_determinism=true"]
    options += ["actor_rollout_ref.rollout.name=vllm"]

    async def seeds(session: int) -> list[int]:
        servers = FakeServers()
        await loop(tiny, servers, *options).run(sampling(), **row(TASK, WORDS, session=session))
        return [params["seed"] for _, _, params in servers.requests]

    first, second = await seeds(1), await seeds(2)
    assert len({*first, *second}) == len(first) + len(second)
    assert await seeds(1) == first


async def test_validation_may_sample_as_it_likes(tiny: Any) -> None:
    """Rollouts with the parameters of val_kwargs are validation, and give rows."""
    params = sampling() | {"top_p": 0.7, "temperature": 0.0}
    key = "actor_rollout_ref.rollout.val_kwargs"
    options = [f"{key}.top_p=0.7", f"{key}.temperature=0.0"]
    (output,) = await loop(tiny, FakeServers(), *options).run(params, **row(TASK, WORDS))
    assert sum(output.response_mask) > 0


@pytest.mark.parametrize(
    ("changes", "reason"),
    [({"top_p": 0.7}, "cut the distribution"), ({"temperature": 0.5}, "several temperatures")],
)
async def test_other_parameters_than_trainings_and_validations_are_gated(
    tiny: Any, caplog: pytest.LogCaptureFixture, changes: dict[str, Any], reason: str
) -> None:
    """A rollout whose parameters are of neither may be trained, so it is refused with a reason."""
    made = loop(tiny, FakeServers())
    assert await made.run(sampling(**changes), **row(TASK, WORDS)) == []
    assert reason in caplog.text


async def test_greedy_baselines_of_remax_are_not_gated(
    tiny: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """ReMax never trains its greedy rollouts; any other estimator would."""
    key = "actor_rollout_ref.rollout.val_kwargs.temperature=0.6"
    remax = loop(tiny, FakeServers(), key, "algorithm.adv_estimator=remax")
    assert await remax.run(sampling(temperature=0), **row(TASK, WORDS))
    other = loop(tiny, FakeServers(), key, "algorithm.adv_estimator=rloo")
    assert await other.run(sampling(temperature=0), **row(TASK, WORDS)) == []
    assert "temperature 0" in caplog.text


async def test_a_deriver_without_its_signals_gives_no_row(
    tiny: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Missing votes are not zeros; with an annotator there is a row."""
    options = ["+trajgym.rewards=[{name:vote_rewards}]"]
    assert await loop(tiny, FakeServers(), *options).run(sampling(), **row(TASK, WORDS)) == []
    assert "no signal 'vote'" in caplog.text
    options.append("+trajgym.annotators=['tests.adapters.test_group_rows:make_judge']")
    (output,) = await loop(tiny, FakeServers(), *options).run(sampling(), **row(TASK, WORDS))
    assert output.reward_score > 0


async def test_versions_are_always_whole_numbers(tiny: Any) -> None:
    """If the servers don't report their version, the trainer's step is used."""
    (output,) = await loop(tiny, FakeServers(version=None)).run(sampling(), **row(TASK, WORDS))
    steps = [output.extra_fields[name] for name in ("min_global_steps", "max_global_steps")]
    assert steps == [7, 7]
    assert all(type(step) is int for step in steps)


async def test_a_uid_with_an_underscore_is_refused(
    tiny: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Verl would split such a uid's keys in the wrong place."""
    made = loop(tiny, FakeServers())
    assert await made.run(sampling(), **row(TASK, WORDS, uid="a_b")) == []
    assert "underscores" in caplog.text


def test_rows_that_verl_would_mangle_are_refused() -> None:
    """Rows with other lengths, no prompt, or an observation at the end, which verl would accept."""
    (sound,) = build_rows(load_golden("parallel_calls")[0]).rows
    assert split(sound).response.size == sound.input_ids.size - int(sound.loss_mask.argmax())
    trailing = np.append(sound.loss_mask[:-1], False)
    for change, said in (
        ({"logprobs": sound.logprobs[:-1]}, "another length"),
        ({"loss_mask": trailing}, "end on a trained id"),
        ({"loss_mask": np.ones(len(sound), bool)}, "start with a prompt"),
    ):
        with pytest.raises(InvalidRow, match=said):
            split(dataclasses.replace(sound, **change))


@register("test/shared")
class Shared(Words):
    """Counts how often it was prepared, and fails the first time."""

    prepared = 0

    @classmethod
    async def open_run(cls, config: Mapping[str, Any], tasks: Sequence[Task] = ()) -> None:
        Shared.prepared += 1
        await asyncio.sleep(0)
        if Shared.prepared == 1:
            raise ConnectionError("no engine yet")


async def test_an_environment_is_prepared_once_in_a_process(
    tiny: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """What sessions share is opened with the first of them; a failure is tried again."""
    spec = EnvSpec(id="test/shared")
    assert await loop(tiny, FakeServers()).run(sampling(), **row(TASK, spec)) == []
    assert "no engine yet" in caplog.text
    made = [loop(tiny, FakeServers()).run(sampling(), **row(TASK, spec)) for _ in range(3)]
    assert [len(outputs) for outputs in await asyncio.gather(*made)] == [1, 1, 1]
    assert Shared.prepared == 2


async def test_sessions_at_once_are_bounded(tiny: Any) -> None:
    """With trajgym.concurrency, no more sessions run at once in a worker than that.

    The first waits for a second one, which one that is alone would do for ever.
    """
    most, two = 0, asyncio.Event()

    class Counting(FakeServers):
        running = 0

        async def generate(self, request_id: str, **more: Any) -> Any:
            nonlocal most
            self.running += 1
            most = max(most, self.running)
            if most > 1:
                two.set()
            await asyncio.wait_for(two.wait(), 240)
            try:
                return await super().generate(request_id, **more)
            finally:
                self.running -= 1

    servers = Counting(delay=0.01)
    made = [loop(tiny, servers, "+trajgym.concurrency=2") for _ in range(5)]
    done = await asyncio.gather(
        *(one.run(sampling(), **row(TASK, WORDS, session=i)) for i, one in enumerate(made))
    )
    assert all(len(outputs) == 1 for outputs in done)
    assert most == 2


REASONS = "<think>\nlet me see\n</think>\n\nyes"


async def test_a_rewritten_context_gives_several_rows(tiny: Any) -> None:
    """Where the template strips reasoning, each context is a row of its own, the last one last."""
    servers = FakeServers(lambda call: REASONS)
    outputs = await loop(tiny, servers).run(sampling(), **row(TASK, WORDS))
    assert [output.reward_score for output in outputs] == [0.0, 0.0, 1.0]
    prompts = [output.prompt_ids for output in outputs]
    assert sorted(prompts, key=len) == prompts
    main = ["trainer.use_v1=False", "+trajgym.outputs=main"]
    only = await loop(tiny, servers, *main).run(sampling(), **row(TASK, WORDS))
    assert only.response_ids == outputs[-1].response_ids


async def test_older_trainers_take_one_row_or_an_error(tiny: Any) -> None:
    """V0 gets the main row where that was asked for; what it can't be given is an error there."""
    old = ["trainer.use_v1=False"]
    with pytest.raises(RolloutFailed, match=r"trajgym\.outputs"):
        await loop(tiny, FakeServers(), *old).run(sampling(), **row(TASK, WORDS))
    main = [*old, "+trajgym.outputs=main"]
    output = await loop(tiny, FakeServers(), *main).run(sampling(), **row(TASK, WORDS))
    assert len(output.prompt_ids) <= PROMPT
    assert len(output.response_ids) <= RESPONSE
    broken = EnvSpec(id=WORDS.id, config={"fail": "tool"})
    servers = FakeServers(lambda call: calls("note", text="x"))
    with pytest.raises(RolloutFailed, match="session failed"):
        await loop(tiny, servers, *main).run(sampling(), **row(TASK, broken))


def test_the_column_is_json_that_any_reader_keeps() -> None:
    """The column is one string: arguments of different environments can't be mixed up."""
    value = json.loads(row(TASK, WORDS)["trajgym"])
    assert value["env"] == {"id": WORDS.id, "config": {}}
    assert value["task"]["id"] == TASK.id
