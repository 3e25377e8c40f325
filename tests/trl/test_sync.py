"""TRL's synchronous GRPO trainer: sessions by rollout_func, and tools by environment_factory."""

from __future__ import annotations

import json
import threading
from collections import Counter
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.trl.runs import ByTurn, Recorded, farthest, gradients, token_loss
from tests.trl.tiny import SPEC, Tiny, Words, tasks
from tests.worlds import PNG
from trajgym.adapters.trl import (
    GRPORollouts,
    RolloutFailed,
    StepGRPOTrainer,
    check_logprobs,
)
from trajgym.envs import Env, EnvSpec, Image, ToolResult, register, tool
from trajgym.rewards import TurnTable, apply
from trajgym.rollout import FakeEngine, PolicyRejected
from trajgym.rollout.engines import Fault, LocalEngine
from trajgym.rollout.rendering import TemplateRenderer
from trajgym.trajectory import ConformanceError, InvalidInput, Run, Task, build_rows


def config(folder: Path, **options: Any) -> Any:
    from trl import GRPOConfig

    settings = {
        "per_device_train_batch_size": 8,
        "num_generations": 4,
        "max_steps": 1,
        "report_to": "none",
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "save_strategy": "no",
        "disable_tqdm": True,
        "max_completion_length": 256,
        "logging_steps": 1,
        "learning_rate": 1e-3,
        "max_grad_norm": 0.0,
    }
    return GRPOConfig(str(folder), **{**settings, **options})


def step_trainer(tiny: Tiny, spec: GRPORollouts, folder: Path, **options: Any) -> Any:
    model, extra = tiny.model(), {}
    if "parity_tolerance" in options:
        extra["parity_tolerance"] = options.pop("parity_tolerance")
    return StepGRPOTrainer(
        model=model,
        reward_funcs=spec.reward_funcs,
        args=config(folder, **options),
        train_dataset=spec.train_dataset,
        processing_class=tiny.tokenizer,
        rollout_func=spec.rollout_func,
        **extra,
    )


def caught(trainer: Any) -> dict[str, Any]:
    """Train, and return the gradient of the (last) step."""
    from transformers import TrainerCallback

    found: dict[str, Any] = {}

    class Catch(TrainerCallback):  # type: ignore[misc]
        def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
            for name, parameter in trainer.model.named_parameters():
                found[name] = parameter.grad.clone()

    trainer.add_callback(Catch())
    trainer.train()
    return found


def rows_of(path: Path, deriver: Any) -> list[Any]:
    """Return a run's training rows with the deriver's advantages."""
    with Run(path) as run:
        groups, found = list(run.groups()), []
        for group in groups:
            trees = [run.session(m.session) for m in group.counted]
            values = deriver.derive(TurnTable.build([group], trees))
            found += [row for tree in trees for row in apply(build_rows(tree).rows, values)]
    return found


def test_the_trainers_template_options_reach_the_prompts(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`chat_template_kwargs` change the ids of prompts here as in TRL's own sampling."""
    head = "{% if addition is defined %}{{ addition }}{% endif %}"
    template = head + tiny.tokenizer.chat_template
    monkeypatch.setattr(tiny.tokenizer, "chat_template", template)
    options = {"addition": "Be brief."}
    with GRPORollouts(SPEC, tasks(2), tmp_path / "run", samples=4, deriver="grpo") as spec:
        trainer = step_trainer(tiny, spec, tmp_path, chat_template_kwargs=options)
        found = spec.rollout_func([trainer.train_dataset[0]["prompt"]], trainer)
    assert tiny.tokenizer.decode(found["prompt_ids"][0]).startswith("Be brief.")


@pytest.mark.parametrize("loss_type", ["dapo", "grpo"])
def test_the_gradient_is_that_of_advantages_per_token(
    tiny: Tiny, tmp_path: Path, loss_type: str
) -> None:
    """Recorded log-probs and a deriver's advantages reach the loss, under either kind of mean."""
    with GRPORollouts(SPEC, tasks(4), tmp_path / "run", samples=4, deriver=ByTurn()) as spec:
        trainer = step_trainer(tiny, spec, tmp_path, loss_type=loss_type)
        got = caught(trainer)
    assert trainer.parity < 1e-4
    assert spec.left.total() == 0
    rows = rows_of(tmp_path / "run/process0/groups-of-4", ByTurn())
    assert len(rows) == 8
    model = tiny.model()
    losses = [token_loss(model, row) for row in rows]
    if loss_type == "dapo":  # a mean over all tokens
        loss = sum(one.sum() for one in losses) / sum(one.numel() for one in losses)
    else:  # every session once
        loss = sum(one.mean() for one in losses) / len(losses)
    assert farthest(got, gradients(model, loss)) < 1e-3


class Failing(LocalEngine):
    """The trainer's own model, without an answer for sessions of some endings."""

    ending = "-1"

    async def generate(self, *args: Any, session: str = "", **options: Any) -> Any:
        if session.endswith(self.ending):
            raise PolicyRejected("this session's engine is gone")
        return await super().generate(*args, session=session, **options)


@pytest.mark.parametrize("loss_type", ["bnpo", "dapo", "dr_grpo", "grpo"])
def test_a_failed_session_is_in_no_denominator(tiny: Tiny, tmp_path: Path, loss_type: str) -> None:
    """The filler that stands for a failed session in TRL's batch leaves the gradient as it was."""

    def engine(trainer: Any) -> LocalEngine:
        return Failing(trainer.accelerator.unwrap_model(trainer.model), name="trainer")

    options: dict[str, Any] = {"deriver": ByTurn(), "engine": engine, "samples": 4}
    with GRPORollouts(SPEC, tasks(2), tmp_path / "run", **options) as spec:
        trainer = step_trainer(tiny, spec, tmp_path, loss_type=loss_type)
        got = caught(trainer)
        assert spec.left == Counter({"failed:policy": 2})
    rows = rows_of(tmp_path / "run/process0/groups-of-4", ByTurn())
    assert len(rows) == 6
    model = tiny.model()
    losses = [token_loss(model, row) for row in rows]
    sums, tokens = sum(one.sum() for one in losses), sum(map(len, losses))
    loss = {
        "bnpo": sums / tokens,
        "dapo": sums / tokens,
        "dr_grpo": sums / (len(losses) * trainer.max_completion_length),
        "grpo": sum(one.mean() for one in losses) / len(losses),
    }[loss_type]
    assert farthest(got, gradients(model, loss)) < 1e-3


def test_settings_under_which_nothing_is_trained_are_refused(tiny: Tiny, tmp_path: Path) -> None:
    """Too few tasks, masked endings and cut distributions are named before the first step."""
    with GRPORollouts(SPEC, tasks(1), tmp_path / "run", samples=4) as spec:
        with pytest.raises(InvalidInput, match="there are 1 tasks, but a batch takes 2 prompts"):
            step_trainer(tiny, spec, tmp_path)
        one = {"per_device_train_batch_size": 4}
        step_trainer(tiny, spec, tmp_path, **one)
        for options, words in (
            ({"mask_truncated_completions": True}, "masks every row whose last id"),
            ({"top_p": 0.9}, "top_p is 0.9"),
        ):
            with pytest.raises(InvalidInput, match=words):
                step_trainer(tiny, spec, tmp_path, **one, **options)


def test_groups_without_rows_end_the_training(tiny: Tiny, tmp_path: Path) -> None:
    """If every session fails, the training ends with an error that has the causes."""

    def engine(trainer: Any) -> LocalEngine:
        made = Failing(trainer.accelerator.unwrap_model(trainer.model), name="trainer")
        made.ending = ""
        return made

    options: dict[str, Any] = {"samples": 4, "give_up": 2, "engine": engine}
    with GRPORollouts(SPEC, tasks(2), tmp_path / "run", **options) as spec:
        with pytest.raises(RolloutFailed, match=r"2 consecutive groups had no row.*failed:policy"):
            step_trainer(tiny, spec, tmp_path, parity_tolerance=None).train()


@pytest.mark.parametrize(
    ("loss_type", "level"),
    [
        ("dr_grpo", "token"),
        ("bnpo", "token"),
        ("cispo", "token"),
        ("sapo", "token"),
        ("luspo", "token"),
        ("vespo", "token"),
    ],
)
def test_every_loss_type_takes_them(tiny: Tiny, tmp_path: Path, loss_type: str, level: str) -> None:
    """All of TRL's losses train on per-token advantages; the loss is finite and moves weights."""
    with GRPORollouts(SPEC, tasks(2), tmp_path / "run", samples=4, deriver=ByTurn()) as spec:
        options = {"loss_type": loss_type, "importance_sampling_level": level, "epsilon_high": 5.0}
        trainer = step_trainer(tiny, spec, tmp_path, **options)
        got = caught(trainer)
    assert np.isfinite(trainer.state.log_history[0]["loss"])
    assert sum(float(g.abs().sum()) for g in got.values()) > 0


def test_ratios_of_sequences_take_one_advantage_for_each_row(tiny: Tiny, tmp_path: Path) -> None:
    """TRL would train every token with the mean of its row; equal advantages are no problem."""
    for name, deriver in (("one", "grpo"), ("several", ByTurn())):
        with GRPORollouts(SPEC, tasks(2), tmp_path / name, samples=4, deriver=deriver) as spec:
            trainer = step_trainer(tiny, spec, tmp_path, importance_sampling_level="sequence")
            if name == "one":
                trainer.train()
                assert trainer.state.global_step == 1
            else:
                with pytest.raises(InvalidInput, match="importance_sampling_level"):
                    trainer.train()


def test_batches_are_reused_and_updates_show_as_versions(tiny: Tiny, tmp_path: Path) -> None:
    """Two passes over shuffled minibatches work, and versions count the steps."""
    with GRPORollouts(SPEC, tasks(4), tmp_path / "run", samples=4) as spec:
        options = {"max_steps": 6, "steps_per_generation": 2, "num_iterations": 2}
        trainer = step_trainer(tiny, spec, tmp_path, per_device_train_batch_size=4, **options)
        trainer.train()
    with Run(tmp_path / "run/process0/groups-of-4") as run:
        trees = [run.session(s.record.id) for s in run.summaries()]
        assert all(group.sealed and len(group.members) == 4 for group in run.groups())
    versions = Counter(int(t.turns[0].tokens.version_low[0]) for t in trees if t.turns[0].tokens)
    assert versions == Counter({0: 8, 4: 8})
    assert all(np.isfinite(log["loss"]) for log in trainer.state.log_history if "loss" in log)


def test_without_a_deriver_the_trainers_own_advantages_stay(tiny: Tiny, tmp_path: Path) -> None:
    """The spec's reward function gives the sessions' scores, and TRL compares them."""
    with GRPORollouts(SPEC, tasks(2), tmp_path / "run", samples=4) as spec:
        trainer = step_trainer(tiny, spec, tmp_path)
        trainer.train()
    log = trainer.state.log_history[0]
    with Run(tmp_path / "run/process0/groups-of-4") as run:
        scores = [s.attempts[0].outcome.score for s in run.summaries() if s.attempts[0].outcome]
    assert log["reward"] == pytest.approx(np.mean(scores), abs=1e-4)
    assert log["rewards/outcome/mean"] == log["reward"]


def test_evaluation_has_groups_of_its_own_size(tiny: Tiny, tmp_path: Path) -> None:
    """Evaluating runs sessions too, with the trainer's number of them, and leaves weights alone."""
    with GRPORollouts(SPEC, tasks(2), tmp_path / "run", samples=4) as spec:
        options = {"num_generations_eval": 2, "per_device_eval_batch_size": 4}
        trainer = step_trainer(tiny, spec, tmp_path, **options)
        trainer.train()
        found = trainer.evaluate(spec.train_dataset)
    assert 0 <= found["eval_reward"] <= 1
    with Run(tmp_path / "run/process0/groups-of-2") as run:
        versions = {
            int(turn.tokens.version_low[0])
            for summary in run.summaries()
            for turn in run.session(summary.record.id).turns
            if turn.tokens is not None
        }
        assert len(list(run.groups())) == 2
    assert versions == {1}


class Stuck(FakeEngine):
    """Says when it is asked, and hangs."""

    def __init__(self, asked: threading.Event, **options: Any) -> None:
        super().__init__(["yes"], faults=[Fault(call=0, kind="hang")], **options)
        self.asked = asked

    async def generate(self, *args: Any, **options: Any) -> Any:
        self.asked.set()
        return await super().generate(*args, **options)


def test_a_batch_has_a_deadline(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine that hangs ends the batch in time, and nothing is left running.

    Here the deadline is counted from the first session's first turn: on a busy machine, it would
    have passed before that.
    """
    asked, result = threading.Event(), Future.result

    def late(future: Future[Any], timeout: float | None = None) -> Any:
        if timeout == 0.5:
            assert asked.wait(240)
        return result(future, timeout)

    monkeypatch.setattr(Future, "result", late)

    def stuck(trainer: Any) -> FakeEngine:
        return Stuck(asked, renderer=TemplateRenderer(tiny.tokenizer))

    opened, closed = Words.opened, Words.closed
    settings: dict[str, Any] = {"samples": 4, "engine": stuck, "batch_seconds": 0.5}
    settings["allow"] = ["synthetic"]
    with GRPORollouts(SPEC, tasks(2), tmp_path / "run", **settings) as spec:
        with pytest.raises(TimeoutError):
            step_trainer(tiny, spec, tmp_path, parity_tolerance=None).train()
    assert Words.opened - opened == Words.closed - closed > 0
    assert [t.name for t in threading.enumerate() if t.name.startswith("trajgym")] == []


def test_failed_sessions_are_left_out_of_the_mean(tiny: Tiny, tmp_path: Path) -> None:
    """A session whose engine failed is no row of zeros: its reward is None, its group shrinks."""

    def broken(trainer: Any) -> FakeEngine:
        renderer = TemplateRenderer(tiny.tokenizer)
        return FakeEngine(["yes", "yes", "yes"], renderer=renderer, faults=[Fault(call=0)])

    made_up = {"engine": broken, "allow": ["synthetic"]}
    with GRPORollouts(SPEC, tasks(1), tmp_path / "run", samples=4, **made_up) as spec:
        options = {"per_device_train_batch_size": 4, "parity_tolerance": None}
        trainer = step_trainer(tiny, spec, tmp_path, **options)
        trainer.train()
        assert spec.left == Counter({"failed:policy": 1})
    assert trainer.state.log_history[0]["reward"] == 1.0


def test_wrong_logprobs_stop_the_first_step(tiny: Tiny, tmp_path: Path) -> None:
    """A sampler whose log-probs are not the model's is found before anything is trained."""

    def made_up(trainer: Any) -> FakeEngine:
        return FakeEngine(["yes", "yes", "yes"], renderer=TemplateRenderer(tiny.tokenizer))

    options: dict[str, Any] = {"engine": made_up, "allow": ["synthetic"]}
    with GRPORollouts(SPEC, tasks(2), tmp_path / "run", samples=4, **options) as spec:
        with pytest.raises(ConformanceError, match="differ by up to"):
            step_trainer(tiny, spec, tmp_path).train()
    assert [t.name for t in threading.enumerate() if t.name.startswith("trajgym")] == []


def test_prompts_of_another_dataset_are_refused(tiny: Tiny, tmp_path: Path) -> None:
    """A prompt that names no task of the spec is an error, not an empty session."""
    with GRPORollouts(SPEC, tasks(2), tmp_path / "run") as spec:
        with pytest.raises(InvalidInput, match="train_dataset of this GRPORollouts"):
            spec._task_of([{"role": "user", "content": "hi"}])


# Parity --------------------------------------------------------------------------------------


def test_parity_tells_right_from_wrong(tiny: Tiny, recorded: Recorded) -> None:
    """Aligned log-probs agree to rounding; a shift or another temperature is far off."""
    rows = [row for _, rows in recorded.rows(ByTurn()) for row in rows]
    found = check_logprobs(tiny.model(), rows)
    assert found.most < 1e-4
    assert found.tokens == sum(int(row.loss_mask.sum()) for row in rows)
    shifted = [_with_logprobs(row, np.roll(row.logprobs, 1)) for row in rows]
    with pytest.raises(ConformanceError, match="shifted by one"):
        check_logprobs(tiny.model(), shifted)
    for row in rows:
        row.temperature = 0.7
    with pytest.raises(ConformanceError):
        check_logprobs(tiny.model(), rows)
    rows[0].temperature = None
    with pytest.raises(InvalidInput, match="temperature None"):
        check_logprobs(tiny.model(), rows)


def _with_logprobs(row: Any, values: Any) -> Any:
    import dataclasses

    return dataclasses.replace(row, logprobs=np.where(row.loss_mask, values, 0).astype(np.float32))


# Tools ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def caller(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    """A tiny model with TRL's Qwen template that notes something and then says yes."""
    import torch
    import trl
    from transformers import Qwen2Config, Qwen2ForCausalLM
    from transformers.utils import get_json_schema

    from tests.rollout.tokenizers import tokenizer

    folder = tmp_path_factory.mktemp("caller")
    made = tokenizer("qwen")
    made = type(made).from_pretrained(_saved(made, folder))
    made.pad_token = "<|endoftext|>"
    made.padding_side = "left"
    made.chat_template = (Path(trl.__file__).parent / "chat_templates/qwen2_5.jinja").read_text()
    with GRPORollouts(SPEC, tasks(1), folder / "probe") as spec:
        schema = get_json_schema(spec.environment_factory.note.__get__(object()))
    function = {"name": "note", "arguments": {"text": "a"}}
    conversation = [
        {"role": "user", "content": "Say long words.\n\nIs it 0?"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"type": "function", "function": function}],
        },
        {"role": "tool", "name": "note", "content": "noted a"},
        {"role": "assistant", "content": "yes"},
    ]
    ids = made.apply_chat_template(conversation, tools=[schema], return_dict=False)
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=len(made),
            hidden_size=48,
            intermediate_size=96,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            eos_token_id=made.eos_token_id,
            pad_token_id=made.pad_token_id,
            bos_token_id=None,
        )
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    inputs = torch.tensor([ids])
    for _ in range(150):
        model(input_ids=inputs, labels=inputs).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(folder)
    made.save_pretrained(folder)
    return Tiny(str(folder), made)


def _saved(made: Any, folder: Path) -> str:
    made.save_pretrained(folder)
    return str(folder)


def tool_trainer(caller: Tiny, spec: GRPORollouts, folder: Path) -> Any:
    from trl import GRPOTrainer

    return GRPOTrainer(
        model=caller.model(),
        reward_funcs=spec.reward_funcs,
        args=config(folder, per_device_train_batch_size=4, max_tool_calling_iterations=2),
        train_dataset=spec.train_dataset,
        processing_class=caller.tokenizer,
        environment_factory=spec.environment_factory,
    )


def test_tools_of_the_environment_are_called(caller: Tiny, tmp_path: Path) -> None:
    """TRL shows our tools to the model, calls them, and is given our verification's scores."""
    opened, closed = Words.opened, Words.closed
    with GRPORollouts(SPEC, tasks(1), tmp_path / "run", samples=4) as spec:
        trainer = tool_trainer(caller, spec, tmp_path)
        trainer.train()
    log = trainer.state.log_history[0]
    assert log["tools/call_frequency"] > 0
    assert np.isfinite(log["loss"])
    assert Words.opened - opened == Words.closed - closed == 4
    with Run(tmp_path / "run/tools") as run:
        trees = [run.session(s.record.id) for s in run.summaries()]
        (group,) = run.groups()
    assert group.sealed
    assert len(group.counted) == 4
    assert sum(len(turn.calls) for tree in trees for turn in tree.turns) > 0
    scores = [tree.attempts[0].outcome.score for tree in trees if tree.attempts[0].outcome]
    assert log["reward"] == pytest.approx(np.mean(scores), abs=1e-4)


def test_a_broken_tool_gives_no_reward(caller: Tiny, tmp_path: Path) -> None:
    """A session whose environment broke has the reward None, not 0."""
    broken = EnvSpec(id="test/words", config={"fail": "tool"})
    with GRPORollouts(broken, tasks(1), tmp_path / "run", samples=2) as spec:
        envs = [spec.environment_factory() for _ in range(2)]
        for env in envs:
            assert env.reset(task="w0", prompt=[]) == "Say long words.\n\nIs it 0?"
        assert envs[0].note(text="a") == "Error: the environment failed."
        said = [{"role": "assistant", "content": "yes"}]
        (outcome,) = spec.reward_funcs
        scores = outcome(completions=[said, said], environments=envs)
        assert scores == [None, pytest.approx(1 / 3)]
        assert spec.left == Counter({"failed:env": 1})
        assert envs[0].note(text="b") == "The episode is over; call no more tools."


def test_instances_are_reused_and_closed(tmp_path: Path) -> None:
    """Reset closes the last session, close the rest, whether or not an episode had ended."""
    opened, closed = Words.opened, Words.closed
    spec = GRPORollouts(SPEC, tasks(1), tmp_path / "run", samples=2)
    env = spec.environment_factory()
    for _ in range(3):
        env.reset(task="w0")
    assert Words.closed - closed == 2
    spec.close()
    spec.close()
    assert Words.opened - opened == Words.closed - closed == 3
    with GRPORollouts(SPEC, tasks(1), tmp_path / "run") as again:
        with pytest.raises(InvalidInput, match="contains sessions"):
            _ = again.environment_factory


@register("test/slow")
class Slow(Env):
    """Shows a picture; verification waits for as many others as :attr:`together` says."""

    together = threading.Barrier(1)

    def reset(self, task: Task, seed: int | None) -> str:
        return "look"

    @tool
    def look(self) -> ToolResult:
        """Take a screenshot."""
        return ToolResult(content=["you see", Image(PNG)])

    def verify(self) -> float:
        self.together.wait(240)
        return 1.0


def test_images_go_through_the_tools(tmp_path: Path) -> None:
    """A screenshot comes back as blocks that a processor takes, with the picture itself."""
    with GRPORollouts(EnvSpec(id="test/slow"), tasks(1), tmp_path / "run") as spec:
        env = spec.environment_factory()
        env.reset(task="w0")
        text, image = env.look()
        assert text == {"type": "text", "text": "you see"}
        assert image["type"] == "image"
        assert image["image"].size == (1, 1)


def test_verifications_of_a_batch_overlap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight verifications run at the same time: each waits for the others."""
    monkeypatch.setattr(Slow, "together", threading.Barrier(8))
    with GRPORollouts(EnvSpec(id="test/slow"), tasks(1), tmp_path / "run") as spec:
        envs = [spec.environment_factory() for _ in range(8)]
        for env in envs:
            env.reset(task="w0")
        (outcome,) = spec.reward_funcs
        said = [{"role": "assistant", "content": "done"}]
        assert outcome(completions=[said] * 8, environments=envs) == [1.0] * 8


def test_schemas_are_those_of_the_environment(tmp_path: Path) -> None:
    """What TRL reads from the methods is what the environment declares."""
    from transformers.utils import get_json_schema

    with GRPORollouts(SPEC, tasks(1), tmp_path / "run") as spec:
        env = spec.environment_factory()
        found = get_json_schema(env.note)["function"]
    assert found["description"] == "Write something down."
    properties = found["parameters"]["properties"]
    assert {name: one["type"] for name, one in properties.items()} == {
        "text": "string",
        "times": "integer",
    }
    assert found["parameters"]["required"] == ["text"]
    assert json.dumps(properties["text"]).count("what to write") == 1
