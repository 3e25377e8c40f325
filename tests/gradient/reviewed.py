"""Settings of the trainers that are not in docs/settings.md, by the reason why they are not.

Tests in each trainer's environment compare the fields of its configuration classes with these lists
and with the table: a field that a new version adds is in neither.
"""

from __future__ import annotations

from tests.gradient.settings import settings

__all__ = ["known"]

Reasons = dict[str, str]
"""Names of settings, separated by spaces, by reason."""

TRL: Reasons = {
    "the objective, which works as documented on rows with an advantage for each token": """
        beta cast_lm_head_to_fp32 delta disable_dropout entropy_coef entropy_coef_delta
        entropy_coef_max entropy_coef_min entropy_target epsilon epsilon_high learning_rate
        loss_type lr_scheduler_type off_policy_mask_threshold ref_model_mixup_alpha
        ref_model_sync_steps router_aux_loss_coef sapo_temperature_neg sapo_temperature_pos
        sync_ref_model use_adaptive_entropy use_bias_correction_kl vespo_k_neg vespo_k_pos
        vespo_lambda_neg vespo_lambda_pos vllm_importance_sampling_cap
        vllm_importance_sampling_clip_max vllm_importance_sampling_clip_min
    """,
    "batches of rows, whose ratios have the recorded log-probs as denominators": """
        generation_batch_size num_generations_eval num_iterations remove_unused_columns
        shuffle_dataset steps_per_generation
    """,
    "honoured by the adapter": """
        chat_template_kwargs max_completion_length max_inflight_tasks max_staleness queue_maxsize
        request_timeout vllm_server_base_url weight_sync_steps
    """,
    "checked by the adapter: together with other settings, or for each sample": """
        token_budget use_vllm
    """,
    "read by TRL's own advantages, samplers or tool loop, which the adapter replaces": """
        cache_implementation fork_threshold_tokens max_tool_calling_iterations
        multi_objective_aggregation reward_weights scale_rewards
        transformers_continuous_batching_config use_transformers_continuous_batching
        use_transformers_paged
    """,
    "resources, connections, checkpoints and logs": """
        ds3_gather_for_generation dtype heartbeat_stale_after_s ignore_data_skip log_completions
        log_completions_hub_repo log_multimodal log_unique_prompts logging_steps
        model_init_kwargs num_completions_to_print pad_to_multiple_of trust_remote_code
        vllm_enable_sleep_mode vllm_gpu_memory_utilization vllm_group_port vllm_max_model_length
        vllm_mode vllm_model_impl vllm_server_host vllm_server_port vllm_server_timeout
        vllm_tensor_parallel_size weight_sync_timeout
    """,
}

VERL: Reasons = {
    "the objective, which works as documented on rows with an advantage for each token": """
        actor.clip_ratio actor.clip_ratio_c actor.clip_ratio_high actor.clip_ratio_low
        actor.entropy_coeff actor.freeze_vision_tower actor.grad_clip actor.kl_loss_coef
        actor.kl_loss_type actor.loss_scale_factor actor.optim actor.policy_loss.clip_cov_lb
        actor.policy_loss.clip_cov_ratio actor.policy_loss.clip_cov_ub actor.policy_loss.dro_beta
        actor.policy_loss.kl_cov_ratio actor.policy_loss.ppo_kl_coef actor.ppo_epochs
        actor.tau_neg actor.tau_pos actor.use_kl_loss algorithm.kl_ctrl algorithm.kl_penalty
        algorithm.rollout_correction.loss_type
        algorithm.rollout_correction.rollout_is_batch_normalize
        algorithm.rollout_correction.rollout_is_threshold algorithm.rollout_correction.rollout_rs
        algorithm.rollout_correction.rollout_rs_threshold
    """,
    "aggregations: weighted by session, or reported as rows-averaged": """
        actor.loss_agg_mode
    """,
    "checked together with other settings, see docs/verl.md": """
        actor.ppo_mini_batch_size algorithm.adv_estimator algorithm.rollout_correction
        algorithm.rollout_correction.bypass_mode rollout.agent rollout.engine_kwargs
        rollout.max_model_len rollout.multi_turn rollout.name
    """,
    "honoured by the agent loop": """
        rollout.full_determinism rollout.prompt_length rollout.response_length rollout.val_kwargs
    """,
    "read by verl's own estimators, of which the trainers trajgym_* take none": """
        algorithm.gamma algorithm.gdpo_reward_keys algorithm.gdpo_reward_weights algorithm.lam
        algorithm.norm_adv_by_std_in_grpo algorithm.pf_ppo algorithm.use_pf_ppo
    """,
    "read by samplers and loops that V1 does not use": """
        rollout.do_sample rollout.limit_images rollout.mode rollout.over_sample_rate
    """,
    "an error in verl, since the agent loop returns no routes": """
        rollout.enable_rollout_routing_replay
    """,
    "containers of settings that are listed one by one": """
        actor.policy_loss actor.policy_loss.rollout_correction
    """,
    "copies of other settings": """
        actor.rollout_n actor.use_rollout_log_probs
    """,
    "batches, kernels, parallelism, resources, checkpoints and logs": """
        actor.calculate_entropy actor.calculate_sum_pi_squared actor.checkpoint
        actor.data_loader_seed actor.engine actor.entropy_checkpointing
        actor.entropy_from_logits_chunk_size actor.entropy_from_logits_with_chunking
        actor.fsdp_config actor.global_batch_info actor.model_config actor.pad_to_length
        actor.ppo_infer_max_token_len_per_gpu actor.ppo_infer_micro_batch_size_per_gpu
        actor.ppo_max_token_len_per_gpu actor.ppo_micro_batch_size
        actor.ppo_micro_batch_size_per_gpu actor.profiler actor.qat actor.shuffle actor.strategy
        actor.ulysses_sequence_parallel_size actor.use_dynamic_bsz actor.use_fused_kernels
        actor.use_prefix_grouper actor.use_remove_padding actor.use_torch_compile
        rollout.checkpoint_engine rollout.checkpoint_manager_class rollout.cudagraph_capture_sizes
        rollout.custom rollout.data_parallel_size rollout.disable_log_stats
        rollout.disaggregation rollout.dtype rollout.enable_chunked_prefill
        rollout.enable_prefix_caching
        rollout.enable_sleep_mode rollout.enforce_eager rollout.expert_parallel_size
        rollout.free_cache_engine rollout.gpu_memory_utilization
        rollout.layer_name_map rollout.layered_summon rollout.load_format
        rollout.log_prob_max_token_len_per_gpu rollout.log_prob_micro_batch_size
        rollout.log_prob_micro_batch_size_per_gpu rollout.log_prob_use_dynamic_bsz
        rollout.max_num_batched_tokens rollout.max_num_seqs
        rollout.moe_load_balance_metrics_interval rollout.moe_tensor_parallel_size rollout.mtp
        rollout.multi_stage_wake_up rollout.n_gpus_per_node rollout.nnodes
        rollout.pipeline_model_parallel_size rollout.profiler rollout.prometheus rollout.qat
        rollout.quantization rollout.quantization_config_file rollout.router_config_path
        rollout.scheduling_policy rollout.seed rollout.server rollout.sglang_engine_mode
        rollout.skip_tokenizer_init rollout.standalone_gpu_memory_utilization
        rollout.tensor_model_parallel_size rollout.trace
    """,
}

AREAL: Reasons = {
    "the objective, which works as documented on rows with an advantage for each token": """
        actor.c_clip actor.disable_dropout actor.eps_clip actor.eps_clip_higher
        actor.kl_estimator actor.m2_threshold actor.optimizer actor.ppo_n_minibatches
        actor.sapo_tau_neg actor.sapo_tau_pos actor.use_sapo_loss teacher
    """,
    "parameters of a penalty that is in the table": """
        actor.max_new_tokens actor.overlong_penalty_factor actor.overlong_tokens
    """,
    "checked together with other settings, see docs/areal.md": """
        actor.attn_impl actor.mb_spec actor.use_decoupled_loss ref rollout.agent
        rollout.consumer_batch_size rollout.max_head_offpolicyness
    """,
    "honoured by the workflow": """
        gconfig.lora_name gconfig.max_new_tokens gconfig.max_tokens gconfig.skip_special_tokens
        gconfig.stop_token_ids rollout.max_concurrent_rollouts tokenizer_path
    """,
    "not covered, see docs/areal.md": """
        actor._version actor.enable_tree_training actor.is_critic actor.use_lora rollout._version
        rollout.return_routed_experts rollout.use_lora
    """,
    "containers of settings that are listed one by one": """
        actor gconfig rollout
    """,
    "evaluation": """
        eval_gconfig evaluator valid_dataset
    """,
    "batches, parallelism, resources, checkpoints and logs": """
        actor.admin_api_key actor.archon actor.backend actor.dtype actor.experiment_name
        actor.fsdp actor.grad_reduce_dtype actor.gradient_checkpointing actor.init_from_scratch
        actor.log_agent_stats actor.log_agent_stats_keys actor.log_level actor.lora_alpha
        actor.lora_rank actor.megatron actor.offload actor.optimizer_dtype actor.pad_to_maximum
        actor.path actor.peft_type actor.request_timeout actor.scheduling_spec
        actor.scheduling_strategy actor.setup_timeout actor.target_modules actor.trial_name
        actor.use_kernels actor.weight_update_mode allocation_mode cluster dynamic_bs
        enable_offload experiment_name memory_profiler perf_tracer recover
        rollout.admin_api_key rollout.api_url rollout.backend rollout.check_trajectory_format
        rollout.dump_to_file rollout.enable_rollout_tracing rollout.experiment_name
        rollout.fileroot rollout.lora_name rollout.model rollout.pause_grace_period
        rollout.poll_interval rollout.provider_api_key rollout.queue_size
        rollout.request_retries rollout.request_timeout rollout.routing_strategy
        rollout.scheduling_spec rollout.scheduling_strategy rollout.setup_timeout
        rollout.tokenizer_path rollout.trial_name saver scheduler seed sglang stats_logger
        total_train_epochs total_train_n_seqs total_train_steps train_dataset trial_name vllm
    """,
}
_ALL = {"trl": TRL, "verl": VERL, "areal": AREAL}


def known(trainer: str) -> set[str]:
    """Return the settings of a trainer that are in the table or in a list above.

    Raises:
        ValueError: a setting is in both.
    """
    listed = [name for names in _ALL[trainer].values() for name in names.split()]
    tabled = {one.key.removeprefix("actor_rollout_ref.") for one in settings(trainer)}
    twice = {name for name in listed if listed.count(name) > 1} | tabled & set(listed)
    if twice:
        raise ValueError(f"listed twice: {sorted(twice)}")
    return tabled | set(listed)
