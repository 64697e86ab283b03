"""From a configuration to a running engine: open, resolve, plan memory, load, wire up."""

from __future__ import annotations

import secrets
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from octavo.attention.backend import AttentionNeeds
from octavo.attention.select import select_backend
from octavo.config.engine import EngineConfig
from octavo.engine.core import EngineCore
from octavo.engine.outputs import ModelInfo
from octavo.engine.resolve import KV_DTYPES, ModelLimits, PlatformFacts, resolve
from octavo.errors import ConfigError
from octavo.executor.inproc import InprocExecutor
from octavo.hf.chat_template import ChatTemplate, control_texts
from octavo.hf.checkpoint import Checkpoint, open_checkpoint
from octavo.hf.hub import resolve_model
from octavo.hf.tokenizer import Tokenizer
from octavo.kvcache.manager import KVCacheManager
from octavo.kvcache.planning import MemoryFacts, MemoryPlan, plan_blocks, plan_groups
from octavo.kvcache.spec import KVCacheSpec, KVGroup
from octavo.loader.loader import ModelFacts, describe, load_model
from octavo.log import get_logger
from octavo.platforms.base import Platform
from octavo.platforms.cpu import CpuPlatform, parse_op_overrides
from octavo.sampling.custom import load as load_custom
from octavo.scheduler.scheduler import Scheduler
from octavo.worker.memory import activation_bytes, weight_bytes
from octavo.worker.worker import Worker, WorkerLimits

__all__ = ["EnginePlan", "build_engine", "plan_engine"]

MAX_TEMPLATE_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class EnginePlan:
    """All that is decided before a weight is read.   config: without "auto".   reasons: why it is as it is."""

    config: EngineConfig
    checkpoint: Checkpoint
    facts: ModelFacts
    groups: tuple[KVGroup, ...]
    memory: MemoryPlan
    reasons: tuple[str, ...]


def plan_engine(config: EngineConfig, platform: Platform) -> EnginePlan:
    """Open the checkpoint, resolve the configuration and plan memory; reads no weight and no kernel library.

    Raises ModelNotFoundError, CheckpointError or ConfigError.
    """
    checkpoint = open_checkpoint(resolve_model(config.model.model, config.model.revision))
    wanted = config.model.load_format
    if wanted in ("safetensors", "gguf") and wanted != checkpoint.format:
        raise ConfigError(f"load_format={wanted}, but {checkpoint.path} is {checkpoint.format}", field="load_format")
    facts = describe(checkpoint)
    threads = platform.threads()
    resolved = resolve(
        config,
        ModelLimits(
            architecture=facts.architecture,
            max_position=facts.config.max_position,
            default_position=facts.config.default_position,
        ),
        PlatformFacts(
            device=platform.name,
            default_dtype=platform.default_dtype,
            threads=threads.count,
            threads_reason=threads.reason,
        ),
    )
    full = resolved.config
    specs = [_kv_spec(facts, index, full) for index in range(facts.config.num_layers)]
    groups = tuple(plan_groups(specs))
    dtype = KV_DTYPES[full.model.dtype]
    assert full.model.max_model_len is not None and full.scheduler.max_num_batched_tokens is not None
    tokens, rows = full.scheduler.max_num_batched_tokens, full.scheduler.max_num_seqs
    memory = plan_blocks(
        groups,
        MemoryFacts(
            free_bytes=platform.memory().free_bytes,
            weight_bytes=weight_bytes(facts.config, dtype),
            activation_bytes=activation_bytes(facts.config, dtype, tokens, rows),
            memory_fraction=full.cache.memory_fraction,
            kv_bytes=full.cache.kv_cache_bytes,
        ),
        max_model_len=full.model.max_model_len,
        is_length_fixed=config.model.max_model_len is not None,
        max_num_seqs=rows,
        chunk=tokens,
    )
    full = replace(full, model=replace(full.model, max_model_len=memory.max_model_len))
    return EnginePlan(
        config=full, checkpoint=checkpoint, facts=facts, groups=groups, memory=memory, reasons=resolved.reasons
    )


def _kv_spec(facts: ModelFacts, layer: int, config: EngineConfig) -> KVCacheSpec:
    """Return what one layer keeps per token, from the configuration alone."""
    window = facts.config.windows[layer]
    return KVCacheSpec(
        kind="sliding_window" if window else "full",
        block_size=config.cache.block_size,
        num_kv_heads=facts.config.num_kv_heads,
        head_dim=facts.config.head_dim,
        dtype=config.cache.kv_cache_dtype,
        window=window,
    )


def build_engine(config: EngineConfig, platform: Platform | None = None) -> tuple[EngineCore, ModelInfo]:
    """Build an engine that is ready to serve.

    Raises ModelNotFoundError, CheckpointError, UnsupportedModelError or ConfigError.
    """
    begin = time.perf_counter()
    platform = platform or CpuPlatform()
    logger = get_logger(__name__)
    plan = plan_engine(config, platform)
    for reason in plan.reasons:
        logger.info(reason)
    logger.info(plan.memory.explain())
    # the tokenizer is built beside the import of the kernels and the decoding of the weights
    with ThreadPoolExecutor(1) as pool:
        info = pool.submit(_model_info, plan)
        worker = _build_worker(plan, platform)
        model_info = info.result()
    cache = KVCacheManager(
        plan.groups,
        plan.memory.num_blocks,
        enable_prefix_caching=plan.config.cache.enable_prefix_caching,
        hash_secret=secrets.token_bytes(32),
    )
    scheduler = Scheduler(plan.config.scheduler, cache, max_model_len=plan.memory.max_model_len)
    depth = plan.config.scheduler.depth
    core = EngineCore(scheduler, InprocExecutor(worker, overlap=depth > 1), depth=depth)
    logger.info("ready after %.2f s", time.perf_counter() - begin)
    return core, model_info


def _build_worker(plan: EnginePlan, platform: Platform) -> Worker:
    config = plan.config
    ops = platform.bind_ops(parse_op_overrides(config.parallel.op))
    assert config.parallel.threads is not None and config.model.max_model_len is not None
    ops.set_threads(config.parallel.threads)
    needs = [
        AttentionNeeds(device=platform.name, spec=group.spec, softcap=plan.facts.config.attention_softcap is not None)
        for group in plan.groups
    ]
    backend, why = select_backend(ops, needs)
    get_logger(__name__).info("attention backend: %s", why)
    model = load_model(
        plan.facts,
        None if config.model.load_format == "dummy" else plan.checkpoint.weights,
        ops=ops,
        max_length=config.model.max_model_len,
        dtype=KV_DTYPES[config.model.dtype],
        threads=config.parallel.threads,
    )
    return Worker(
        model,
        ops,
        backend=backend,
        groups=plan.groups,
        limits=WorkerLimits(
            max_rows=config.scheduler.max_num_seqs,
            max_model_len=config.model.max_model_len,
            num_blocks=plan.memory.num_blocks,
        ),
        logprobs_mode=config.model.logprobs_mode,
        custom=load_custom(config.model.logits_processors, plan.facts.config.vocab_size),
    )


def _read_tokenizer(config: EngineConfig, checkpoint: Checkpoint) -> Tokenizer:
    if config.model.tokenizer is not None:
        return _open_tokenizer(resolve_model(config.model.tokenizer))
    if checkpoint.format == "gguf":
        return Tokenizer.from_gguf(checkpoint.metadata)
    return Tokenizer.from_folder(checkpoint.tokenizer_path)


def _open_tokenizer(path: Path) -> Tokenizer:
    """Read the tokenizer of another folder or GGUF file."""
    if path.is_dir():
        return Tokenizer.from_folder(path)
    return Tokenizer.from_gguf(open_checkpoint(path).metadata)


def _read_template(config: EngineConfig, checkpoint: Checkpoint, tokenizer: Tokenizer) -> ChatTemplate | None:
    source: Any = checkpoint.chat_templates or checkpoint.chat_template_text
    if config.model.chat_template is not None:
        path = Path(config.model.chat_template)
        if not path.is_file() or path.stat().st_size > MAX_TEMPLATE_BYTES:
            raise ConfigError(f"chat_template={path} is not a file of at most 1 MiB", field="chat_template")
        source = path.read_text(encoding="utf-8")
    if not source:
        return None

    def text(token_id: int | None) -> str:
        return "" if token_id is None else tokenizer.token_text(token_id)

    eos = tokenizer.eos_token_ids[0] if tokenizer.eos_token_ids else None
    return ChatTemplate(source, bos_token=text(tokenizer.bos_token_id), eos_token=text(eos))


def _eos_ids(plan: EnginePlan, tokenizer: Tokenizer) -> tuple[int, ...]:
    """Return every id that ends a sequence: the tokenizer's, the model's and its generation defaults'."""
    ids: list[int] = list(tokenizer.eos_token_ids)
    for source in (plan.checkpoint.generation_config, plan.facts.hf_config):
        given = source.get("eos_token_id")
        ids += given if isinstance(given, list) else [given] if isinstance(given, int) else []
    return tuple(dict.fromkeys(i for i in ids if isinstance(i, int) and 0 <= i < plan.facts.config.vocab_size))


def _model_info(plan: EnginePlan) -> ModelInfo:
    config, checkpoint = plan.config, plan.checkpoint
    tokenizer = _read_tokenizer(config, checkpoint)
    template = _read_template(config, checkpoint, tokenizer)
    assert config.model.max_model_len is not None
    return ModelInfo(
        model=config.model.model or checkpoint.path.stem,
        max_model_len=config.model.max_model_len,
        vocab_size=plan.facts.config.vocab_size,
        tokenizer=tokenizer,
        chat_template=template,
        control_texts=frozenset() if template is None else control_texts(template, tokenizer.added_tokens),
        eos_token_ids=_eos_ids(plan, tokenizer),
        sampling_defaults=checkpoint.generation_config if config.model.generation_config == "model" else {},
        config=config,
    )
