"""One turn: a reply is executed within the agent's time, and becomes a record."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trajgym.envs._clock import OutOfTime
from trajgym.envs._ledger import usage_of
from trajgym.envs.faults import Fault
from trajgym.trajectory import Turn
from trajgym.trajectory._internal import replace_surrogates

if TYPE_CHECKING:
    from trajgym.envs._conversation import Place
    from trajgym.envs._execute import Execution
    from trajgym.envs._ledger import Taken
    from trajgym.envs._meter import Meter
    from trajgym.envs._reply import Reply

__all__ = ["execute", "turn_of"]


async def execute(run: Execution, reply: Reply, meter: Meter) -> None:
    """Run and settle the execution of a reply; one that was cut off is not run."""
    if reply.finish == "length":
        run.cut = meter.out_of_tokens()
    elif reply.finish == "abort":
        run.fault = Fault("policy", "the engine aborted the response", "")
    else:
        try:
            async with meter.clock.running(meter.seconds_left):
                await run.run()
        except OutOfTime:
            run.cut = run.cut or meter.out_of_time()
            run.settle("timeout")
            return
    run.settle()


def turn_of(reply: Reply, taken: Taken | None, run: Execution, place: Place) -> Turn:
    """Return the record of a reply; whose it is, and its times, are the caller's to set.

    Args:
        reply: the policy's.
        taken: its ids, if they are exact.
        run: its settled execution.
        place: where it belongs.
    """
    return Turn(
        index=-1,
        parent=place.parent,
        edge=place.edge,
        kept=place.kept,
        context=place.context,
        returns=place.returns,
        message=reply.message,
        observation=run.observation,
        calls=run.calls,
        reward=run.reward,
        done=run.done,
        signals=replace_surrogates(run.signals),
        finish=reply.finish,
        usage=reply.usage or usage_of(taken),
        sampling=reply.sampling,
        policy=reply.policy,
        synthetic=reply.synthetic,
        tokens=None if taken is None else taken.tokens,
    )
