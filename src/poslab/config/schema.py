"""The schema of a job: its parts as dataclasses, with the rules that every configuration has to keep.

The values are in ``conf/``. A setting with a default here may be missing from the folders of older runs. Nothing here
imports torch, so that a typing error is answered at once.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from poslab.config.origin import weights_checksum
from poslab.config.packages import PACKAGE, VARIABLE, lies_in, named_packages
from poslab.config.rules import at_least, at_most, check_numbers, one_of
from poslab.errors import ConfigError

DIAGNOSTICS = Path(__file__).parents[1] / "diagnostics"
MOST_PROCESSES = 256
"""The most processes of one job, so that a typing error does not fill the machine's process table."""
MOST_THREADS = 1024
MOST_WIDTH = 2**20
MOST_BATCHES = 2**16
"""The most batches of one update, which are in memory together."""
VAL_TOKENS = 24_576
LEAST_VAL_EXAMPLES, MOST_VAL_EXAMPLES = 64, 512
"""Bounds of a validation set whose size is not given; within them its examples have `VAL_TOKENS` tokens in all."""


@dataclass(kw_only=True)
class DataConfig:
    batch_size: int
    steps_per_epoch: int
    val_examples: int | None
    val_batch_size: int
    num_workers: int
    holdout: float | None = None

    def __post_init__(self) -> None:
        if self.holdout is not None and not 0 < self.holdout < 1:
            raise ConfigError(f"data.holdout={self.holdout} must be a share between 0 and 1, or null")
        at_least(1, self, "data.", "batch_size", "steps_per_epoch", "val_examples", "val_batch_size")
        at_least(0, self, "data.", "num_workers")
        at_most(MOST_PROCESSES, self, "data.", "num_workers")

    def n_val_examples(self, seq_len: int) -> int:
        """The size of the validation set: ``val_examples``, or the default for sequences of this many tokens.

        512 long sequences would take a tenth of the time of the training.
        """
        if self.val_examples is not None:
            return self.val_examples
        return max(LEAST_VAL_EXAMPLES, min(MOST_VAL_EXAMPLES, VAL_TOKENS // seq_len))


@dataclass(kw_only=True)
class ModelConfig:
    architecture: str
    d_model: int
    n_heads: int
    n_layers: int
    max_context_length: int | None
    vocab_size: int | None
    tie_embeddings: bool
    token_init: str
    token_init_std: float
    token_file: str | None
    dropout: float
    scale_residuals: bool = True

    def __post_init__(self) -> None:
        one_of("model.architecture", self.architecture, ("attention", "transformer"))
        at_least(1, self, "model.", "d_model", "n_heads", "n_layers", "max_context_length", "vocab_size")
        # Listing the divisors of a very large number, for the error below, takes minutes.
        at_most(MOST_WIDTH, self, "model.", "d_model")
        if self.d_model % self.n_heads:
            divisors = [n for n in range(1, self.d_model + 1) if self.d_model % n == 0]
            raise ConfigError(
                f"model.d_model={self.d_model} cannot be split into model.n_heads={self.n_heads} equal heads; "
                f"choose n_heads from {', '.join(map(str, divisors))}, or another d_model"
            )
        if self.architecture == "attention" and self.n_layers != 1:
            raise ConfigError(
                f"model.n_layers={self.n_layers}, but model=attention has exactly one layer; use model=transformer"
            )
        one_of("model.token_init", self.token_init, ("normal", "hashed", "file"))
        if (self.token_init == "file") != (self.token_file is not None):
            raise ConfigError(
                f"model.token_init={self.token_init} with model.token_file={self.token_file}: "
                "token_init=file needs a token_file, and only it uses one"
            )
        at_least(0, self, "model.", "token_init_std", "dropout")
        if self.dropout >= 1:
            raise ConfigError(f"model.dropout={self.dropout} must be below 1")


@dataclass(kw_only=True)
class OptimizerConfig:
    algorithm: str
    lr: float
    betas: list[float]
    weight_decay: float
    warmup_steps: int
    decay: str
    weight_decay_on: str = "all"

    def __post_init__(self) -> None:
        one_of("optimizer.algorithm", self.algorithm, ("adam", "adamw"))
        one_of("optimizer.decay", self.decay, ("none", "linear", "cosine"))
        one_of("optimizer.weight_decay_on", self.weight_decay_on, ("all", "matrices", "hidden"))
        at_least(0, self, "optimizer.", "weight_decay", "warmup_steps")
        if not (math.isfinite(self.lr) and self.lr > 0):
            raise ConfigError(f"optimizer.lr={self.lr} must be a finite number above 0")
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            raise ConfigError(f"optimizer.betas={self.betas} must be two numbers in [0, 1)")


@dataclass(kw_only=True)
class TrainerConfig:
    accelerator: str
    devices: int
    strategy: str
    precision: str
    max_epochs: int
    max_steps: int
    gradient_clip_norm: float | None
    log_every_n_steps: int
    progress_bar: str
    threads: str
    checkpoint_every_n_steps: int | None = None
    checkpoint_every_minutes: float | None = None
    num_nodes: int = 1
    stop_when: str | None = None
    accumulate_batches: int = 1
    keep_checkpoints: str = "0"

    def __post_init__(self) -> None:
        one_of("trainer.accelerator", self.accelerator, ("auto", "cpu", "gpu"))
        one_of("trainer.strategy", self.strategy, ("auto", "ddp", "fsdp"))
        one_of("trainer.precision", self.precision, ("32", "bf16"))
        one_of("trainer.progress_bar", self.progress_bar.lower(), ("auto", "true", "false"))
        at_least(1, self, "trainer.", "devices", "num_nodes", "max_epochs", "log_every_n_steps")
        at_least(1, self, "trainer.", "checkpoint_every_n_steps", "accumulate_batches")
        at_most(MOST_BATCHES, self, "trainer.", "accumulate_batches")
        at_least(0, self, "trainer.", "checkpoint_every_minutes")
        at_most(MOST_PROCESSES, self, "trainer.", "devices", "num_nodes")
        for name, number in (("devices", self.devices), ("num_nodes", self.num_nodes)):
            if number > 1 and self.strategy == "auto":
                raise ConfigError(f"trainer.{name}={number} needs trainer=ddp to train on more than one device")
        if self.max_steps != -1 and self.max_steps < 1:
            raise ConfigError(f"trainer.max_steps={self.max_steps} must be at least 1, or -1 for no limit")
        if self.gradient_clip_norm is not None and not self.gradient_clip_norm > 0:
            raise ConfigError(f"trainer.gradient_clip_norm={self.gradient_clip_norm} must be above 0, or null")
        keep = self.keep_checkpoints
        if keep != "all" and not (keep.isdecimal() and len(keep) < 10):
            raise ConfigError(f"trainer.keep_checkpoints={keep[:20]} must be a number from 0 to 999999999, or all")
        if self.threads != "auto" and not (self.threads.isdecimal() and int(self.threads) > 0):
            raise ConfigError(f"trainer.threads={self.threads} must be a number above 0, or auto")
        if self.threads != "auto":
            at_most(MOST_THREADS, self, "trainer.", "threads")


@dataclass(kw_only=True)
class LoggerConfig:
    tensorboard: bool
    pictures: str = "auto"

    def __post_init__(self) -> None:
        one_of("logger.pictures", self.pictures, ("auto", "all", "ends"))


@dataclass(kw_only=True)
class ClaimConfig:
    """A published claim about the results of a sweep, in a form that can be checked against them.

    Attributes:
        claim: in words.
        source: who made the claim.
        where: the jobs that the claim is about, as their settings are typed (``pos=alibi model.n_layers=2``); empty:
            all jobs.
        metric: a name in ``result.json``; the claim is about its mean over those jobs.
        above, below: bounds of the mean; one of these two or ``than`` is needed.
        than: other jobs, written like ``where``; the mean has to be above the mean of each group of them that
            differs in more than the seed.
        by: the least difference to ``than``.
    """

    claim: str
    source: str
    metric: str
    where: str = ""
    above: float | None = None
    below: float | None = None
    than: str | None = None
    by: float = 0.0

    def __post_init__(self) -> None:
        for name, jobs in (("where", self.where), ("than", self.than or "")):
            stray = [word for word in jobs.split() if not re.fullmatch("[^=]+=.+", word)]
            if stray:
                raise ConfigError(
                    f"sweep.claims: '{self.claim}' has {name}='{jobs}', where '{stray[0]}' is not key=value; "
                    "write settings as they are typed, for example pos=alibi model.n_layers=2"
                )
        if self.above is None and self.below is None and self.than is None:
            raise ConfigError(f"sweep.claims: '{self.claim}' expects nothing; give above, below or than")


@dataclass(kw_only=True)
class SweepConfig:
    resume: str | None
    on_invalid: str
    on_failure: str = "continue"
    claims: list[ClaimConfig] = field(default_factory=list)

    def __post_init__(self) -> None:
        one_of("sweep.on_invalid", self.on_invalid, ("skip", "fail"))
        one_of("sweep.on_failure", self.on_failure, ("continue", "stop"))


@dataclass(kw_only=True)
class ComparisonConfig:
    """How the jobs of a sweep are compared.

    Attributes:
        margin: two levels within this factor of each other are equivalent.
        tune: axes, such as ``optimizer.lr``, along which each level is compared at its own best value.
    """

    margin: float = 1.25
    tune: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not (math.isfinite(self.margin) and self.margin > 1):
            raise ConfigError(f"comparison.margin={self.margin} must be a finite factor above 1, such as 1.25")
        if "seed" in self.tune or "task" in self.tune:
            raise ConfigError("comparison.tune cannot be seed or task; name settings such as optimizer.lr")


@dataclass(kw_only=True)
class TrainConfig:
    """One job. ``pos``, ``task`` and each of ``diagnostics`` name a class of this package by ``_target_``."""

    seed: int
    data: DataConfig
    pos: dict[str, Any]
    task: dict[str, Any]
    model: ModelConfig
    optimizer: OptimizerConfig
    trainer: TrainerConfig
    diagnostics: dict[str, Any]
    logger: LoggerConfig
    resume: str | None
    sweep: SweepConfig
    comparison: ComparisonConfig = field(default_factory=ComparisonConfig)
    seeds: int = 1
    compile: bool = False
    ckpt_path: str | None = None
    init_from: str | None = None
    init_from_sha256: str | None = None
    deterministic: bool = False

    @property
    def total_steps(self) -> int:
        """The number of updates of the whole training: ``max_steps`` if given, else ``max_epochs`` whole epochs."""
        if self.trainer.max_steps != -1:
            return self.trainer.max_steps
        return self.trainer.max_epochs * self.data.steps_per_epoch

    @property
    def kept_checkpoints(self) -> int:
        """The number of ``step_<n>.ckpt`` that the whole training leaves, at most."""
        every_n = self.trainer.checkpoint_every_n_steps
        written = -(-self.total_steps // self.data.steps_per_epoch) + (self.total_steps // every_n if every_n else 0)
        return written if self.trainer.keep_checkpoints == "all" else min(written, int(self.trainer.keep_checkpoints))

    def __post_init__(self) -> None:
        if self.resume is not None:
            one_of("resume", self.resume, ("auto",))
        if not 0 <= self.seed < 2**32:
            raise ConfigError(f"seed={self.seed} must be in [0, 2^32)")
        self._check_seeds()
        self._check_init_from()
        if self.data.batch_size % (self.trainer.devices * self.trainer.num_nodes):
            nodes = f" on trainer.num_nodes={self.trainer.num_nodes}" if self.trainer.num_nodes > 1 else ""
            raise ConfigError(
                f"data.batch_size={self.data.batch_size} cannot be split over trainer.devices={self.trainer.devices}"
                f"{nodes}; choose a multiple"
            )
        self.diagnostics = {name: one for name, one in self.diagnostics.items() if not _not_chosen(name, one)}
        open_parts: dict[str, Any] = {"pos": self.pos, "task": self.task}
        open_parts |= {f"diagnostics.{name}": options for name, options in self.diagnostics.items()}
        for key, options in open_parts.items():
            if not isinstance(options, Mapping) or "_target_" not in options:
                raise ConfigError(
                    f"{key} names no class by _target_; use one of the choices in conf/{key.split('.')[0]}"
                )
            check_target(key, options["_target_"])

    def _check_seeds(self) -> None:
        at_least(1, self, "", "seeds")
        if self.seeds == 1:
            return
        if self.seed + self.seeds > 2**32:
            raise ConfigError(f"seed={self.seed} with seeds={self.seeds} goes beyond 2^32; use a smaller seed")
        one_by_one = f"use -m seed={self.seed},{self.seed + 1},... instead"
        if self.model.dropout:
            raise ConfigError(
                f"seeds={self.seeds} with model.dropout={self.model.dropout}: replicas that are trained together "
                f"cannot draw what each would draw alone; {one_by_one}"
            )
        if self.trainer.strategy != "auto":
            raise ConfigError(
                f"seeds={self.seeds} with trainer={self.trainer.strategy}: replicas are trained on "
                f"one device; {one_by_one}"
            )

    def _check_init_from(self) -> None:
        if self.init_from is None:
            return
        if self.ckpt_path is not None:
            raise ConfigError("init_from takes only weights and ckpt_path goes on with a whole run; give one of them")
        if self.model.token_init != "normal":
            raise ConfigError(
                f"model.token_init={self.model.token_init} with init_from={self.init_from}: the token table comes from "
                "there; leave token_init out"
            )


def _not_chosen(name: str, options: Any) -> bool:
    """Whether these are options that an experiment sets for a diagnostic that was not chosen."""
    return isinstance(options, Mapping) and "_target_" not in options and (DIAGNOSTICS / f"{name}.py").exists()


def check_target(key: str, target: Any) -> None:
    """Refuse a ``_target_`` outside this package and those that the user has named: it could run arbitrary code."""
    if not (isinstance(target, str) and lies_in(target, PACKAGE, *named_packages())):
        raise ConfigError(
            f"{key}._target_={target} lies outside the package {PACKAGE}; only its own classes are built, and those of "
            f"packages that you name in {VARIABLE}"
        )


def checked(config: DictConfig) -> TrainConfig:
    """Check a composed configuration; returns it as typed objects.

    Raises:
        ConfigError: a setting breaks a rule.
        omegaconf.errors.OmegaConfBaseException: an unknown key or a wrong type.
    """
    job = {key: value for key, value in OmegaConf.to_container(config).items() if key != "hydra"}  # type: ignore[union-attr]
    typed = OmegaConf.merge(OmegaConf.structured(TrainConfig), job)
    missing = sorted(OmegaConf.missing_keys(typed))
    if missing:
        raise ConfigError(
            f"no value for {', '.join(missing)}; give one as key=value (python train.py --help lists them)"
        )
    check_numbers(OmegaConf.to_container(typed))
    result = OmegaConf.to_object(typed)
    assert isinstance(result, TrainConfig)
    return with_checksum(result) if result.init_from is not None else result


def with_checksum(job: TrainConfig) -> TrainConfig:
    """A job with ``init_from`` as an absolute path, and with the checksum of what is there.

    Raises:
        ConfigError: it is not there, or has another checksum than the job says.
    """
    path = Path(str(job.init_from)).absolute()
    checksum = weights_checksum(str(path))
    if job.init_from_sha256 not in (None, checksum):
        raise ConfigError(
            f"init_from={path} has changed: init_from_sha256 was {job.init_from_sha256} and is {checksum}; "
            "give the old file, or a new run without init_from_sha256"
        )
    return replace(job, init_from=str(path), init_from_sha256=checksum)
