"""verl's V1 chain as its trainer puts it together, without GPUs and inference servers."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from tests.trl.tiny import Tiny
from tests.verl.fake import FakeServers
from trajgym.adapters.verl import column_value
from trajgym.envs import EnvSpec
from trajgym.trajectory import Task

ROOT = Path(__file__).parent.parent.parent
PROMPT, RESPONSE = 384, 512


def composed(*overrides: str) -> Any:
    """Compose verl's own configuration."""
    import verl
    from hydra import compose, initialize_config_dir

    folder = Path(verl.__file__).parent / "trainer" / "config"
    with initialize_config_dir(config_dir=str(folder), version_base=None):
        return compose("ppo_trainer", overrides=list(overrides))


def configuration(tiny: Tiny, *overrides: str) -> Any:
    """Compose the configuration of a small run."""
    return composed(
        f"actor_rollout_ref.model.path={tiny.path}",
        "actor_rollout_ref.rollout.name=vllm",
        "actor_rollout_ref.rollout.n=4",
        "actor_rollout_ref.rollout.calculate_log_probs=True",
        "actor_rollout_ref.rollout.agent.num_workers=1",
        f"data.max_prompt_length={PROMPT}",
        f"data.max_response_length={RESPONSE}",
        "data.train_batch_size=2",
        "reward.num_workers=1",
        "trainer.nnodes=1",
        "trainer.n_gpus_per_node=1",
        "transfer_queue.backend.SimpleStorage.num_data_storage_units=1",
        *overrides,
    )


class Chain:
    """Workers, queue and replay buffer; a worker group is made anew for each configuration."""

    def __init__(self, tiny: Tiny) -> None:
        self.tiny = tiny

    def rollout(
        self,
        data: Path,
        servers: FakeServers,
        *overrides: str,
        config: Any = None,
        step: int = 4,
        validate: bool = False,
        rewards: bool = False,
        refills: list[int] | None = None,
    ) -> Rows:
        """Let verl run every prompt of a file, and return what its trainer would sample.

        With ``rewards`` verl's reward workers run too, as they do in a real training. With
        ``refills`` the asynchronous trainers' buffer samples; there it notes what it evicted.
        """
        import transfer_queue as tq
        from omegaconf import OmegaConf
        from verl.experimental.reward_loop import RewardLoopManager
        from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopManagerTQ
        from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer, ReplayBufferAsync
        from verl.utils import tensordict_utils as tu
        from verl.utils.dataset.rl_dataset import RLHFDataset, collate_fn

        config = config or configuration(self.tiny, *overrides)
        rewarding = RewardLoopManager(config).reward_loop_workers if rewards else None
        manager = AgentLoopManagerTQ.create(
            config=config,
            llm_client=servers,
            teacher_client=None,
            reward_loop_worker_handles=rewarding,
        )
        try:
            rows = RLHFDataset([str(data)], self.tiny.tokenizer, config.data)
            batch = collate_fn([rows[i] for i in range(len(rows))])
            batch["uid"] = np.array([uuid.uuid4().hex for _ in range(len(rows))], dtype=object)
            prompts = tu.get_tensordict(batch)
            tu.assign_non_tensor_data(prompts, "global_steps", step)
            part = "val" if validate else "train"
            if left := list(tq.kv_list().get(part, {})):  # prompts without rows of earlier calls
                tq.kv_clear(keys=left, partition_id=part)
            if validate:
                tu.assign_non_tensor_data(prompts, "validate", True)
            uids = list(prompts["uid"])
            tags = [{"is_prompt": True, "status": "pending", "global_steps": step} for _ in uids]
            tq.kv_batch_put(keys=uids, partition_id=part, tags=tags)
            manager.generate_sequences(prompts)
            kind = ReplayBuffer if refills is None else ReplayBufferAsync
            buffer = kind(
                "sync" if refills is None else "colocate_async",
                OmegaConf.create({}),
                8,
                "drop",
                OmegaConf.create({}),
                poll_interval=0.2,
                refill_fn=None if refills is None else refills.append,
            )
            statuses = {}
            while not all(statuses.get(uid) in {"finished", "failure"} for uid in uids):
                listed = tq.kv_list()[part]
                statuses = {uid: listed[uid]["status"] for uid in uids}
            found, _ = buffer.sample(global_steps=step, partition_id=part, batch_size=len(uids))
            return Rows(config, found, uids, statuses)
        finally:
            import ray

            for worker in [*manager.agent_loop_workers, *(rewarding or [])]:
                ray.kill(worker)


class Rows:
    """A batch in the queue."""

    def __init__(
        self, config: Any, batch: Any, uids: Sequence[str], statuses: dict[str, str]
    ) -> None:
        self.config, self.batch = config, batch
        self.uids, self.statuses = uids, statuses

    def __len__(self) -> int:
        return len(self.batch.keys)

    def get(self, name: str) -> list[Any]:
        """Return a column, a list or value for each row."""
        import transfer_queue as tq

        data = tq.kv_batch_get(
            keys=self.batch.keys, partition_id=self.batch.partition_id, select_fields=[name]
        )
        values = [getattr(value, "data", value) for value in data[name]]
        return [value.tolist() if hasattr(value, "tolist") else value for value in values]

    def by_key(self, name: str) -> dict[tuple[int, int, int], Any]:
        """Return a column by number of the prompt, of the session, and of the output."""
        found = {}
        for key, value in zip(self.batch.keys, self.get(name), strict=True):
            uid, session, index = key.rsplit("_", 2)
            found[self.uids.index(uid), int(session), int(index)] = value
        return found

    def advantages(self, trainer: Any) -> dict[tuple[int, int, int], list[float]]:
        """Let a trainer compute advantages as in a step, with the sampled log-probs as the old."""
        from omegaconf import open_dict

        with open_dict(self.config):
            self.config.algorithm.rollout_correction.bypass_mode = True
        self.metrics: dict[str, Any] = {}
        self.batch = trainer._compute_old_log_prob(self.batch, self.metrics)
        self.batch = trainer._compute_advantage(self.batch, self.metrics)
        return self.by_key("advantages")


@contextmanager
def running(tiny: Tiny) -> Iterator[Chain]:
    """Start Ray and TransferQueue here, and end them."""
    import ray
    from ray.cluster_utils import Cluster

    from tests.ray_nodes import add_node

    variables = {
        "PYTHONPATH": str(ROOT),
        "TRANSFER_QUEUE_ENABLE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "RAY_AUTH_MODE": "disabled",
        "HF_HUB_OFFLINE": "1",
        **{name: value for name, value in os.environ.items() if name.startswith("TQ_")},
    }
    os.environ.update(variables)
    cluster = Cluster()
    add_node(cluster, num_cpus=8, object_store_memory=1024**3, include_dashboard=False)
    ray.init(address=cluster.address, log_to_driver=True, runtime_env={"env_vars": variables})
    import transfer_queue as tq

    config = configuration(tiny)
    config.transfer_queue.enable = True
    tq.init(config.transfer_queue)
    try:
        yield Chain(tiny)
    finally:
        tq.close()
        ray.shutdown()
        cluster.shutdown()


def loop(tiny: Tiny, servers: FakeServers, *overrides: str, **entry: Any) -> Any:
    """Make an agent loop of the small run's configuration, see :func:`loop_of`."""
    return loop_of(configuration(tiny, *overrides), tiny, servers, **entry)


def loop_of(config: Any, tiny: Tiny, servers: FakeServers, **entry: Any) -> Any:
    """Make an agent loop as verl's worker does for each rollout, in this process."""
    import hydra
    from omegaconf import OmegaConf
    from verl.experimental.agent_loop.agent_loop import DictConfigWrap, ToolListWrap
    from verl.utils.dataset.rl_dataset import RLHFDataset

    OmegaConf.resolve(config.actor_rollout_ref.rollout)
    return hydra.utils.instantiate(
        config={"_target_": "trajgym.adapters.verl.TrajgymAgentLoop", "name": "own", **entry},
        trainer_config=DictConfigWrap(config=config),
        server_manager=servers,
        tokenizer=tiny.tokenizer,
        processor=None,
        hf_model_type="qwen2",
        dataset_cls=RLHFDataset,
        data_config=DictConfigWrap(config.data),
        tools=ToolListWrap([]),
    )


def row(task: Task, env: EnvSpec | None, session: int = 0, **more: Any) -> dict[str, Any]:
    """Return what verl gives to ``run`` for a row of the data."""
    return {
        "trajgym": column_value(task, env),
        "uid": uuid.uuid4().hex,
        "session_id": session,
        "global_steps": 7,
        "raw_prompt": [{"role": "user", "content": "x"}],
        **more,
    }


def sampling(**more: Any) -> dict[str, Any]:
    """Return what verl's workers ask for."""
    whole = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "repetition_penalty": 1.0}
    return {**whole, "logprobs": True, **more}
