"""Every deriver through verl's loop and live trainers, or refused at construction."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.adapters.test_group_rows import VARIANTS, expected, sealed
from trajgym.adapters.verl import LoopSettings
from trajgym.rewards import Advantages, get_deriver
from trajgym.trajectory import InvalidInput, build_rows

pytestmark = pytest.mark.timeout(900)
CONFIG = {
    "trainer": {"v1": {"trainer_mode": "trajgym_sync"}},
    "algorithm": {"adv_estimator": "trajgym"},
    "actor_rollout_ref": {
        "rollout": {"n": 4},
        "actor": {"loss_agg_mode": "token-mean"},
    },
}


class Stock:
    """What the trainer mixes into, without Ray: verl's own step changes nothing here."""

    def __init__(self, config: Any) -> None:
        self.config = config

    def _compute_advantage(self, batch: Any, metrics: dict[str, Any]) -> Any:
        del metrics
        return batch


class Queue:
    """TransferQueue's two calls over one batch in memory."""

    def __init__(self, fields: dict[str, Any]) -> None:
        self.fields, self.put = fields, None

    def kv_batch_get(self, **_: Any) -> dict[str, Any]:
        return self.fields

    def kv_batch_put(self, *, fields: Any, **_: Any) -> Any:
        self.put = fields
        return fields


@pytest.mark.parametrize(
    ("name", "settings"), VARIANTS, ids=[f"{name}{settings or ''}" for name, settings in VARIANTS]
)
def test_every_deriver_works_in_the_live_trainer_or_is_refused(
    name: str, settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trainer writes the values of `deriver.table` for each token, or is never made."""
    import torch
    from omegaconf import OmegaConf

    from trajgym.adapters.verl import _loop, _trainer

    class Live(_trainer._Derived, Stock):
        _mode = "sync"

    section = {"deriver": {"name": name, "settings": settings}}
    config = OmegaConf.create({**CONFIG, "trajgym": section})
    deriver = get_deriver(name, **settings)
    given = sealed()
    values = deriver.derive(deriver.table([given.group], given.sessions))
    if not isinstance(values, Advantages):
        with pytest.raises(InvalidInput, match=f"'{name}' gives rewards"):
            Live(config)
        return
    trainer = Live(config)
    read = LoopSettings(**section, trainer="trajgym_sync")  # type: ignore[arg-type]
    makers = _loop._Makers(read, 1.0)
    worker: Any = object.__new__(_loop.TrajgymAgentLoop)
    outputs = [one for tree in given.sessions for one in worker._made(tree, "g", makers)]
    masks = [torch.tensor(one.response_mask) for one in outputs]
    queue = Queue({"extra_fields": [one.extra_fields for one in outputs], "response_mask": masks})
    monkeypatch.setattr(_trainer, "tq", queue)

    class Batch(SimpleNamespace):
        def __len__(self) -> int:
            return len(outputs)

    batch = Batch(keys=list(range(len(outputs))), partition_id="train", tags=[{}] * len(outputs))
    metrics: dict[str, Any] = {}
    found = trainer._compute_advantage(batch, metrics)["advantages"]
    rows = [row for tree in given.sessions for row in build_rows(tree).rows]
    for got, row, wanted in zip(found.unbind(), rows, expected(given, deriver), strict=True):
        start = int(row.loss_mask.argmax())
        np.testing.assert_allclose(got.numpy(), wanted[start:], atol=1e-6)
    assert metrics["trajgym/sessions"] == 4
