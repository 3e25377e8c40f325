"""The command tree. The module that implements a command is imported when the command runs."""

from __future__ import annotations

import errno
import sys
from pathlib import Path
from typing import Annotated

import typer

from trajgym.cli import _sandboxes
from trajgym.cli._dataset import dataset_app
from trajgym.cli._kinds import PlotFormat, SandboxKind, TrainerName
from trajgym.cli._memory import memory_app
from trajgym.cli._options import (
    AgentCommand,
    AgentName,
    AgentSettings,
    AllowChanges,
    ApiKeyEnv,
    ApiKeyFile,
    AsJson,
    BaseUrl,
    Concurrency,
    ConfigFile,
    ContextTokens,
    DecisionsFile,
    Engine,
    EnvConfig,
    EnvId,
    ExtraBody,
    KeepFailed,
    LogprobMode,
    MaxCost,
    MaxTokens,
    MaxTries,
    MissingSignals,
    Model,
    Outcomes,
    Patience,
    PolicyName,
    PricesFile,
    Processes,
    RayAddress,
    Redact,
    RequestRate,
    RequestTimeout,
    Retries,
    RunPath,
    Samples,
    Seed,
    Stream,
    Temperature,
    TopK,
    TopP,
    Track,
    TrackProject,
    Turns,
    collect_options,
    parse_settings,
)
from trajgym.cli._search import search_app
from trajgym.cli._signals import end_like_ctrl_c
from trajgym.cli._swe import swe
from trajgym.cli._terminal import fail, say
from trajgym.trajectory import TrajgymError

__all__ = ["app", "main"]

app = typer.Typer(
    name="trajgym",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.add_typer(_sandboxes.app, name="sandboxes")

app.add_typer(swe)
app.add_typer(search_app, name="search")
app.add_typer(dataset_app, name="dataset")
app.add_typer(memory_app, name="memory")

_REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC)
"""Errors of the file system that the user can correct; others are bugs and keep their traceback."""


def main() -> None:
    """Run the command line.

    The exit status is 0 on success, 1 if something failed, 2 for wrong usage and 130 after
    Ctrl-C. Errors of the package and of the file system are printed as one line without a
    traceback.
    """
    end_like_ctrl_c()
    sys.path.insert(0, str(Path.cwd()))  # so that --env my_module:MyEnv finds the user's file
    try:
        app()
    except (TrajgymError, OSError) as error:
        if isinstance(error, OSError) and error.errno not in _REFUSED:
            raise
        fail(str(error))


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        say(f"trajgym {version('trajgym')}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    log: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Append a log to this file: JSON lines, with the session of each.",
        ),
    ] = None,
) -> None:
    """Environments, token-exact trajectories and structural rewards for training LLM agents."""
    del version
    if log is not None:
        from trajgym.rollout.monitoring import log_to

        log_to(log)


@app.command()
def collect(
    out: Annotated[Path, typer.Option(help="Run directory. An existing run is resumed.")],
    tasks: Annotated[
        str | None,
        typer.Option(help="File, directory, or a name the environment knows."),
    ] = None,
    mix: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="TOML file with several environments and their tasks, instead of --env, --tasks.",
        ),
    ] = None,
    env: EnvId = "swe",
    policy: PolicyName = "scripted",
    agent: AgentName = None,
    agent_command: AgentCommand = None,
    agent_set: AgentSettings = None,
    engine: Engine = None,
    logprobs: LogprobMode = "unknown",
    samples: Samples = 8,
    concurrency: Concurrency = 16,
    processes: Processes = None,
    ray: RayAddress = None,
    turns: Turns = None,
    retries: Retries = 0,
    seed: Seed = 0,
    base_url: BaseUrl = None,
    model: Model = None,
    api_key_env: ApiKeyEnv = None,
    api_key_file: ApiKeyFile = None,
    temperature: Temperature = 1.0,
    top_p: TopP = None,
    top_k: TopK = None,
    max_tokens: MaxTokens = None,
    extra_body: ExtraBody = None,
    stream: Stream = None,
    keep_failed: KeepFailed = False,
    max_tries: MaxTries = 10,
    allow_changes: AllowChanges = "",
    patience: Patience = 900.0,
    request_timeout: RequestTimeout = 600.0,
    request_rate: RequestRate = None,
    context_tokens: ContextTokens = None,
    config: EnvConfig = None,
    prices: PricesFile = None,
    max_cost: MaxCost = None,
    track: Track = None,
    track_project: TrackProject = "trajgym",
    config_file: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Run tasks and record every turn. After Ctrl-C, the same command resumes the run.

    The exit status is 1 if every session of some task failed, and 3 at the cost limit.
    """
    given = dict(locals())
    from trajgym.cli._collect import run_collect

    if (tasks is None) == (mix is None):
        raise typer.BadParameter("give either --tasks or --mix")
    raise typer.Exit(run_collect(collect_options(given), as_json=as_json))


@app.command(name="eval")
def evaluate(
    out: Annotated[Path, typer.Option(help="Directory for the runs. Existing runs are resumed.")],
    tasks: Annotated[
        str | None,
        typer.Option(help="File, directory, or a name the environment knows."),
    ] = None,
    suite: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="TOML file with one [[eval]] table per environment."),
    ] = None,
    env: EnvId = "swe",
    policy: PolicyName = "scripted",
    agent: AgentName = None,
    agent_command: AgentCommand = None,
    agent_set: AgentSettings = None,
    engine: Engine = None,
    logprobs: LogprobMode = "unknown",
    samples: Samples = 8,
    concurrency: Concurrency = 16,
    processes: Processes = None,
    ray: RayAddress = None,
    turns: Turns = None,
    retries: Retries = 0,
    seed: Seed = 0,
    base_url: BaseUrl = None,
    model: Model = None,
    api_key_env: ApiKeyEnv = None,
    api_key_file: ApiKeyFile = None,
    temperature: Temperature = 1.0,
    top_p: TopP = None,
    top_k: TopK = None,
    max_tokens: MaxTokens = None,
    extra_body: ExtraBody = None,
    stream: Stream = None,
    keep_failed: KeepFailed = False,
    max_tries: MaxTries = 10,
    allow_changes: AllowChanges = "",
    patience: Patience = 900.0,
    request_timeout: RequestTimeout = 600.0,
    request_rate: RequestRate = None,
    context_tokens: ContextTokens = None,
    config: EnvConfig = None,
    prices: PricesFile = None,
    max_cost: MaxCost = None,
    track: Track = None,
    track_project: TrackProject = "trajgym",
    config_file: ConfigFile = None,
    by: Annotated[
        str | None,
        typer.Option(metavar="KEY", help="Key of the tasks' data to group tasks by."),
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Earlier evaluation to compare with, per task."),
    ] = None,
    markdown: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Also write the report as Markdown."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Collect, then report solved shares with intervals, pass@k, pass^k, failures and costs.

    The exit status is 1 if an environment has no scored attempt, and 3 if the cost limit ended the
    evaluation.
    """
    given = dict(locals())
    from trajgym.cli._eval import EvalOptions, eval_jobs, run_eval

    if (tasks is None) == (suite is None):
        raise typer.BadParameter("give either --tasks or --suite")
    base = collect_options(given)
    jobs = [base] if suite is None else eval_jobs(suite, base)
    options = EvalOptions(by=by, against=against, markdown=markdown, as_json=as_json)
    raise typer.Exit(run_eval(jobs, options))


@app.command()
def show(
    run: RunPath,
    session: Annotated[
        str | None, typer.Argument(help="Session id, or a unique prefix of it.")
    ] = None,
    full: Annotated[
        bool, typer.Option("--full", help="Don't shorten texts; show tracebacks of failures.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show the sessions of a run, or the turns of one session."""
    from trajgym.cli._show import show_run, show_session

    if session is None:
        show_run(run, as_json=as_json)
    else:
        show_session(run, session, full=full, as_json=as_json)


@app.command()
def frames(
    run: RunPath,
    out: Annotated[Path, typer.Option(help="Directory for the images.")],
    session: Annotated[
        str | None, typer.Argument(help="Session id, or a unique prefix of it.")
    ] = None,
    plain: Annotated[
        bool, typer.Option("--plain", help="Don't draw actions on the images.")
    ] = False,
    video: Annotated[bool, typer.Option("--video", help="One video per attempt instead.")] = False,
    form: Annotated[
        str, typer.Option("--format", help="Of the video: webp (animated), mp4 or webm.")
    ] = "webp",
    seconds: Annotated[float, typer.Option(help="How long a video shows each image.")] = 1.0,
) -> None:
    """Write the images that agents saw, with their actions drawn on them."""
    from trajgym.cli._frames import write_frames, write_videos
    from trajgym.cli._video import video_form

    if video:
        chosen = video_form(form)
        write_videos(run, out, session, plain=plain, seconds=seconds, form=chosen)
    else:
        write_frames(run, out, session, plain=plain)


@app.command()
def watch(
    run: Annotated[Path, typer.Argument(help="Run directory; it need not exist yet.")],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 for a free one.")] = 8200,
) -> None:
    """Show the screens of running sessions on a local page, with the agents' actions."""
    from trajgym.cli.watch import watch_run

    watch_run(run, host=host, port=port)


@app.command()
def view(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="Run directory, or a directory of runs.")
    ],
    session: Annotated[
        str | None, typer.Argument(help="Session id, or a unique prefix of it: open this one.")
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the session to one self-contained file."),
    ] = None,
    rewards: Annotated[
        list[str] | None,
        typer.Option(
            "--with", metavar="DERIVER", help="Deriver whose values the file has; may be repeated."
        ),
    ] = None,
    tokenizer: Annotated[
        str | None, typer.Option(help="Tokenizer (name or directory) that token ids are shown by.")
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 for a free one.")] = 8300,
    open_browser: Annotated[
        bool, typer.Option("--open", help="Open the page in the default browser.")
    ] = False,
) -> None:
    """Show runs, groups and sessions in a browser: a local page, live and read-only."""
    from trajgym.cli._view import ViewOptions, run_view

    run_view(
        ViewOptions(
            run=run,
            session=session,
            html=html,
            derivers=rewards or [],
            tokenizer=tokenizer,
            host=host,
            port=port,
            open_browser=open_browser,
        )
    )


@app.command()
def stats(run: RunPath, prices: PricesFile = None, as_json: AsJson = False) -> None:
    """Count sessions, outcomes, turns, tokens and costs of a run."""
    from trajgym.cli._stats import show_stats

    show_stats(run, prices=prices, as_json=as_json)


@app.command()
def top(
    run: RunPath,
    interval: Annotated[
        float, typer.Option(help="Seconds between two looks.", min=0.1, max=3600)
    ] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Print the figures once.")] = False,
    metrics: Annotated[
        int | None,
        typer.Option(
            metavar="PORT", help="Also serve http://127.0.0.1:PORT/metrics for Prometheus."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the figures of a run while it is collected: states, rates, staleness, failures."""
    from trajgym.cli._top import run_top

    run_top(run, interval=interval, once=once, as_json=as_json, metrics=metrics)


@app.command()
def check(
    run: RunPath,
    trainers: Annotated[
        list[TrainerName] | None,
        typer.Option("--for", help="Also report what this trainer can't use; may be repeated."),
    ] = None,
    max_tokens: Annotated[int | None, typer.Option(help="With --for: most ids of a row.")] = None,
    max_prompt: Annotated[
        int | None, typer.Option(help="With --for: most ids before the first trained one.")
    ] = None,
    max_response: Annotated[
        int | None, typer.Option(help="With --for: most ids from there on.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Read all records of a run and report damage. The exit status is 1 if there is any."""
    from trajgym.cli._stats import check_run

    limits = {"max_tokens": max_tokens, "max_prompt": max_prompt, "max_response": max_response}
    names = [trainer.value for trainer in trainers or []]
    raise typer.Exit(check_run(run, trainers=names, limits=limits, as_json=as_json))


@app.command()
def verify(
    run: RunPath,
    sample: Annotated[
        float, typer.Option(metavar="SHARE", help="Share of the sessions to repeat, up to 1.")
    ] = 1.0,
    seed: Annotated[int, typer.Option(help="Seed of the choice of sessions.")] = 0,
    concurrency: Annotated[int, typer.Option(help="Attempts repeated at the same time.")] = 8,
    deadline: Annotated[float, typer.Option(help="Seconds for one attempt.")] = 3600.0,
    ignore: Annotated[
        list[str] | None,
        typer.Option(metavar="REGEX", help="Text that may differ; may be repeated."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Execute recorded actions again in fresh environments; status 1 if anything differs."""
    from trajgym.cli._verify import run_verify

    status = run_verify(
        run,
        share=sample,
        seed=seed,
        concurrency=concurrency,
        deadline=deadline,
        ignore=ignore or [],
        as_json=as_json,
    )
    raise typer.Exit(status)


@app.command()
def reward(
    run: RunPath,
    name: Annotated[
        str,
        typer.Option(
            "--with", metavar="DERIVER", help="Name of the deriver; `trajgym derivers` lists them."
        ),
    ],
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Setting of the deriver; may be repeated."),
    ] = None,
    explain: Annotated[
        str | None,
        typer.Option(metavar="SESSION", help="Print the terms of each turn's value."),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Plot a group's values (.png, .svg); with --explain, that session's tree.",
        ),
    ] = None,
    outcomes: Outcomes = None,
    missing_signals: MissingSignals = "error",
    as_json: AsJson = False,
) -> None:
    """Compute rewards or advantages and store them in the run."""
    from trajgym.cli._reward import run_reward

    given = parse_settings(settings)
    run_reward(
        run,
        name,
        given,
        explained=explain,
        plot=plot,
        outcomes=outcomes,
        missing_signals=missing_signals,
        as_json=as_json,
    )


@app.command()
def plot(
    run: RunPath,
    out: Annotated[
        Path | None, typer.Option(help="Directory for the files; RUN/plots by default.")
    ] = None,
    form: Annotated[PlotFormat, typer.Option("--format", help="Of the files.")] = PlotFormat.png,
    derivers: Annotated[
        list[str] | None,
        typer.Option(
            "--with",
            metavar="DERIVER",
            help="Show its values beside those stored in the run; may be repeated.",
        ),
    ] = None,
    outcomes: Outcomes = None,
    missing_signals: MissingSignals = "error",
    as_json: AsJson = False,
) -> None:
    """Plot success, rewards, lengths, staleness, tools, tasks, groups, advantages and failures."""
    from trajgym.cli._plot import run_plot

    run_plot(
        run,
        out=out,
        form=form.value,
        derivers=derivers or [],
        outcomes=outcomes,
        missing_signals=missing_signals,
        as_json=as_json,
    )


@app.command()
def rescore(
    run: RunPath,
    rubric: Annotated[
        str | None,
        typer.Option(metavar="MODULE:NAME", help="Instead of the environment's own rubric."),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(help="Under which the outcomes are kept; the rubric's name by default."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="Judge that is asked first for the parts that need one."),
    ] = None,
    base_url: BaseUrl = None,
    api_key_env: ApiKeyEnv = "OPENAI_API_KEY",
    concurrency: Annotated[int, typer.Option(help="Attempts judged at once.")] = 8,
    as_json: AsJson = False,
) -> None:
    """Score attempts again by a rubric, beside the recorded outcomes; status 1 if one can't be."""
    given = dict(locals())
    from trajgym.cli._rescore import RescoreOptions, run_rescore

    raise typer.Exit(run_rescore(RescoreOptions(**given)))


@app.command()
def annotate(
    run: RunPath,
    name: Annotated[str, typer.Option("--with", metavar="JUDGE", help="votes, hints or lessons.")],
    model: Annotated[str, typer.Option(help="Model of the judge.")],
    base_url: BaseUrl = None,
    votes: Annotated[int, typer.Option(help="Votes per turn.")] = 3,
    concurrency: Annotated[int, typer.Option(help="Turns judged concurrently.")] = 8,
    temperature: Temperature = 1.0,
    max_tokens: MaxTokens = None,
    extra_body: ExtraBody = None,
    api_key_env: ApiKeyEnv = None,
    api_key_file: ApiKeyFile = None,
) -> None:
    """Let a model judge recorded turns, for derivers that read its signals. Can be resumed."""
    given = dict(locals())
    from trajgym.cli._annotate import AnnotateOptions, run_annotate
    from trajgym.cli._endpoint import EndpointOptions

    endpoint = EndpointOptions.of(given)
    run_annotate(
        AnnotateOptions(
            run=run, judge=name, endpoint=endpoint, votes=votes, concurrency=concurrency
        ),
    )


@app.command()
def export(
    run: RunPath,
    to: Annotated[
        str, typer.Option(help="A trainer's or a foreign format; `trajgym exports` lists them.")
    ],
    out: Annotated[Path, typer.Option(help="Directory for the files.")],
    rewards: Annotated[
        list[str] | None,
        typer.Option(
            "--with", metavar="DERIVER", help="Deriver of the rows' values; may be repeated."
        ),
    ] = None,
    options: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Setting of the export; may be repeated."),
    ] = None,
    outcomes: Outcomes = None,
    missing_signals: MissingSignals = "error",
    redact: Redact = False,
    decisions: DecisionsFile = None,
    as_json: AsJson = False,
) -> None:
    """Write a run in a trainer's format, with the values that `reward` stored, or a foreign one."""
    from trajgym.cli._redact import redacted
    from trajgym.cli._reward import run_export

    chosen = parse_settings(options)
    with redacted(run, out, wanted=redact, decisions=decisions) as (source, found):
        run_export(
            source,
            to,
            out,
            rewards or [],
            chosen,
            outcomes=outcomes,
            missing_signals=missing_signals,
            redaction=found,
            as_json=as_json,
        )


@app.command(name="import")
def import_(
    form: Annotated[
        str, typer.Argument(metavar="FORMAT", help="Format; `trajgym formats` lists them.")
    ],
    path: Annotated[Path, typer.Argument(help="A file, or a directory of files.")],
    out: Annotated[Path, typer.Option(help="Directory of the new run.")],
    as_json: AsJson = False,
) -> None:
    """Make a run of trajectories in a foreign format; what is not kept is listed."""
    from trajgym.cli._interchange import run_import

    run_import(form, path, out, as_json=as_json)


@app.command()
def formats(
    name: Annotated[str | None, typer.Argument(metavar="FORMAT", help="Only this one.")] = None,
    as_json: AsJson = False,
) -> None:
    """List the formats of `import` and `export`, and what each loses."""
    from trajgym.cli._interchange import show_formats

    show_formats(name, as_json=as_json)


@app.command()
def lint(
    trainer: Annotated[str, typer.Argument(help="areal or verl.")],
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="The trainer's YAML file.")],
    data: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="Data file of the trainer; may be repeated."),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Override, as on the trainer's command line."
        ),
    ] = None,
) -> None:
    """Report settings with which a trainer would silently train on wrong data."""
    from trajgym.cli._lint import run_lint

    run_lint(trainer, config, data or [], parse_settings(settings))


@app.command()
def serve(
    run: Annotated[
        Path | None,
        typer.Argument(help="Run directory to record agents into."),
    ] = None,
    upstream: Annotated[
        str | None,
        typer.Option(help="OpenAI-compatible engine of the recorded agents."),
    ] = None,
    env: Annotated[
        list[str] | None,
        typer.Option(metavar="ID", help="Environment to serve; may be repeated."),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Configuration of the environment."),
    ] = None,
    tasks: Annotated[
        str | None,
        typer.Option(help="Tasks from which OpenEnv's clients choose, as in collect."),
    ] = None,
    kind: Annotated[str, typer.Option(help="vllm, sglang, or hosted (text turns).")] = "vllm",
    model: Annotated[
        str | None,
        typer.Option(help="Model to ask for, instead of the one that agents name."),
    ] = None,
    renderer: Annotated[
        str | None,
        typer.Option(help="Tokenizer that parses ids into spans and messages."),
    ] = None,
    tokens: Annotated[
        bool,
        typer.Option("--tokens", help="Render chats with --renderer and send ids to the engine."),
    ] = False,
    logprobs: Annotated[
        str, typer.Option(help="Log-prob mode of the engine: processed, raw or unknown.")
    ] = "unknown",
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.")] = 8100,
    url: Annotated[
        str | None,
        typer.Option(help="Public URL of this server, if it differs from host and port."),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Only check that the engine returns token ids.")
    ] = False,
    power_safe: Annotated[
        bool, typer.Option("--power-safe", help="Make records durable against power loss too.")
    ] = False,
    hold: Annotated[
        float, typer.Option(help="Most seconds for which a pause delays a call.")
    ] = 240.0,
    redact: Annotated[
        list[str] | None,
        typer.Option(metavar="REGEX", help="Don't store text that matches; may be repeated."),
    ] = None,
    judge: Annotated[
        list[str] | None,
        typer.Option(metavar="KIND", help="Judge turns as they arrive: votes, hints; repeatable."),
    ] = None,
    judge_url: Annotated[str | None, typer.Option(help="Endpoint of the judge.")] = None,
    judge_model: Annotated[str | None, typer.Option(help="Model of the judge.")] = None,
    judge_votes: Annotated[int, typer.Option(help="How often each turn is judged.")] = 3,
    judge_concurrency: Annotated[
        int, typer.Option(help="Most turns that are judged at the same time.")
    ] = 8,
    judge_seconds: Annotated[float, typer.Option(help="Deadline for judging a turn.")] = 120.0,
    judge_api_key_env: Annotated[
        str, typer.Option(help="Environment variable with the judge's API key.")
    ] = "TRAJGYM_JUDGE_API_KEY",
    api_key_env: Annotated[
        str, typer.Option(help="Environment variable with the engine's API key.")
    ] = "OPENAI_API_KEY",
    secret_env: Annotated[
        str, typer.Option(help="Environment variable with the admin token.")
    ] = "TRAJGYM_SERVER_SECRET",  # noqa: S107 - the name of a variable
) -> None:
    """Record agents that use Chat Completions, Responses or Messages, or serve environments."""
    from trajgym.cli._judges import JudgeOptions
    from trajgym.cli._serve import ServeOptions, run_serve

    if kind not in {"vllm", "sglang", "hosted"}:
        raise typer.BadParameter(f"{kind!r}: expected vllm, sglang or hosted")
    if logprobs not in {"processed", "raw", "unknown"}:
        raise typer.BadParameter(f"{logprobs!r}: expected processed, raw or unknown")
    run_serve(
        ServeOptions(
            run=run,
            upstream=upstream,
            kind=kind,  # type: ignore[arg-type]
            model=model,
            renderer=renderer,
            tokens=tokens,
            logprobs=logprobs,
            api_key_env=api_key_env,
            secret_env=secret_env,
            host=host,
            port=port,
            url=url,
            check=check,
            power_safe=power_safe,
            hold_seconds=hold,
            judges=JudgeOptions(
                kinds=judge or [],
                url=judge_url,
                model=judge_model,
                api_key_env=judge_api_key_env,
                votes=judge_votes,
                concurrency=judge_concurrency,
                seconds=judge_seconds,
            ),
            redact=redact or [],
            env=env or [],
            env_config=parse_settings(settings),
            tasks=tasks,
        ),
    )


@app.command()
def mcp(
    env: EnvId,
    tasks: Annotated[str, typer.Option(help="File, directory, or a name the environment knows.")],
    out: Annotated[
        Path | None,
        typer.Option(help="Run directory in which every attempt is recorded."),
    ] = None,
    http: Annotated[
        int | None,
        typer.Option(metavar="PORT", help="Serve streamable HTTP at /mcp instead of stdio."),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    config: EnvConfig = None,
) -> None:
    """Serve an environment as an MCP server, for one agent at a time."""
    from trajgym.cli._mcp import run_mcp

    run_mcp(env, tasks, parse_settings(config), out=out, host=host, port=http)


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Directory for the runs and exports.")] = Path(
        "runs/demo"
    ),
    samples: Samples = 4,
    sandbox: Annotated[SandboxKind, typer.Option(help="Where code runs.")] = SandboxKind.auto,
    base_url: BaseUrl = None,
    model: Model = None,
) -> None:
    """Run SWE tasks from collection to export with a scripted agent; no API key is needed."""
    from trajgym.cli._demo import run_demo

    run_demo(out, samples=samples, sandbox=sandbox.value, base_url=base_url, model=model)


@app.command()
def init(
    target: Annotated[
        Path,
        typer.Argument(metavar="DIR", help="Project directory; its name is the project's name."),
    ],
    sandbox: Annotated[
        bool, typer.Option("--sandbox", help="Write an environment with a sandbox.")
    ] = False,
    images: Annotated[
        bool, typer.Option("--images", help="Write an environment that shows images.")
    ] = False,
) -> None:
    """Create a project for an environment of your own, with tasks, a test and a README."""
    from trajgym.cli._init import init_project

    if sandbox and images:
        raise typer.BadParameter("choose one of --sandbox and --images")
    init_project(target, "sandbox" if sandbox else "images" if images else "plain")


@app.command()
def envs(as_json: AsJson = False) -> None:
    """List the registered environments and their settings."""
    from trajgym.cli._registered import show_registered

    show_registered("envs", as_json=as_json)


@app.command()
def agents(as_json: AsJson = False) -> None:
    """List the known agent programs and their settings; see --agent of `trajgym collect`."""
    from trajgym.cli._registered import show_registered

    show_registered("agents", as_json=as_json)


@app.command(name="check-env")
def check_env(
    env: Annotated[str, typer.Argument(help="Environment: a name or module:Class.")],
    tasks: Annotated[
        str | None,
        typer.Option(help="Task file, directory or name; the first task is used."),
    ] = None,
    config: EnvConfig = None,
) -> None:
    """Check an environment against the contract of `Env`. The exit status is 1 on a violation."""
    from trajgym.cli._conformance import run_check_env

    raise typer.Exit(run_check_env(env, tasks, parse_settings(config)))


@app.command(name="check-sandbox")
def check_sandbox(
    kind: Annotated[SandboxKind, typer.Argument(help="Kind of sandbox.")] = SandboxKind.auto,
) -> None:
    """Check isolation and cleanup of sandboxes on this host. The exit status is 1 on a failure."""
    from trajgym.cli._conformance import run_check_sandbox

    raise typer.Exit(run_check_sandbox(kind.value))


@app.command(name="check-deriver")
def check_deriver(
    name: Annotated[str, typer.Argument(help="Name of the deriver.")],
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Setting of the deriver; may be repeated."),
    ] = None,
) -> None:
    """Check a deriver on generated sessions. The exit status is 1 on a violation."""
    from trajgym.cli._conformance import run_check_deriver

    raise typer.Exit(run_check_deriver(name, parse_settings(settings)))


@app.command()
def derivers(as_json: AsJson = False) -> None:
    """List the registered derivers and their settings."""
    from trajgym.cli._registered import show_registered

    show_registered("derivers", as_json=as_json)


@app.command()
def exports(as_json: AsJson = False) -> None:
    """List the exports and their settings."""
    from trajgym.cli._registered import show_registered

    show_registered("exports", as_json=as_json)
