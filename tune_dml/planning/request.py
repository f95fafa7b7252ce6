"""Declare the options of a sweep, its trials and its session: each option of the command line, once.

An annotation holds the type and the help text. `cli.options` turns the fields into flags; the functions of
`tune_dml.operations` take the dataclasses. This module imports no heavy package.
"""

import contextlib
import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Literal, get_args

from trainables.bucket import bucket_problems
from trainables.errors import Problem
from trainables.option_names import FileKeys, PythonArguments, option_names, option_place, option_problem, spell
from tune_dml.space import Space, Value
from tune_dml.text import python_numbers

SWEEP_FILES = (".yaml", ".yml")
RequestedSearch = Literal["grid", "tpe", "gp", "bayes", "cmaes", "nsga2", "random", "qmc"]
"""A search method; bayes is gp."""
Engine = Literal["local", "train"]
Placement = Literal["pack", "spread"]
Vary = Literal["init", "order", "split", "all"]
Stopping = Literal["asha", "hyperband"]
MAX_SEEDS, _MIN_SEEDS = 200, 3  # seeds of a race
_MIN_STALL = 10.0


@dataclass(frozen=True)
class Request:
    """The content of a sweep. None means that the sweep file, the space or a default decides.

    Scalars of numpy and torch become Python's numbers, which plans and digests store.
    """

    space: Annotated[str | Path | Space, "Name of a search space, or path of a sweep file."] = ""
    dataset: Annotated[str | None, "Data set; the space's default if omitted."] = None
    data_root: Annotated[
        str | Path | None, "Folder or table (.csv, .tsv, .parquet) of the pictures, for data sets that read one."
    ] = None
    seeds: Annotated[int | Sequence[int] | None, "Number of paired seeds (3), or the seeds themselves (0,1,7)."] = None
    settings: Annotated[Mapping[str, Value] | None, "Override a setting; repeatable."] = None
    search: Annotated[RequestedSearch | None, "How cells are chosen; bayes is gp."] = None
    num_samples: Annotated[int | None, "Number of cells to propose, for every search but grid."] = None
    name: Annotated[str | None, "Name of the sweep; by default made from its space, run or table and its data set."] = (
        None
    )
    margin: Annotated[float | None, "Smallest difference that matters, in units of the metric."] = None
    arms: Annotated[Sequence[str] | None, "Compare only these arms of the space; repeatable."] = None
    protocol: Annotated[str | None, "Protocol that trains every arm; by default the one printed for its loss."] = None
    tune: Annotated[
        Mapping[str, Sequence[Value]] | None,
        "Tune a setting in every arm: the given values, in place of a space's own grid, or a third, one and three times its "
        "default; repeatable.",
    ] = None

    stopping: Annotated[
        Stopping | None,
        "Stop weak cells early, with one bracket (asha) or several (hyperband); curves are then incomplete.",
    ] = None

    vary: Annotated[
        Vary | None, "The one source of randomness that seeds change; the others keep the first seed. All by default."
    ] = None

    def __post_init__(self) -> None:
        for option in fields(self):
            object.__setattr__(self, option.name, python_numbers(getattr(self, option.name)))


@dataclass(frozen=True)
class OwnCommand:
    """A user's command that trains each trial, instead of a space."""

    command: Annotated[
        str | None, "Instead of a space: a command that trains a trial, with {parameter} and {seed} in it."
    ] = None
    params: Annotated[
        Mapping[str, Sequence[Value]] | None, "With --command: a parameter and its values; repeatable."
    ] = None
    metric: Annotated[str | None, "With --command: the metric that it reports."] = None
    goal: Annotated[Literal["maximize", "minimize"] | None, "With --command: the metric's direction."] = None


def names_of(request: Request) -> PythonArguments:
    """Return the names that messages use for a request's options: keys of its sweep file, or flags if given as such."""
    if isinstance(request.space, Space) or not str(request.space).endswith(SWEEP_FILES):
        return option_names()
    keys = {option.name for option in fields(Request) if getattr(request, option.name) is None} - {"arms"}
    return FileKeys(str(request.space), keys, option_names())


@dataclass(frozen=True)
class Resources:
    """The resources of a trial."""

    workers: Annotated[int, "Data-parallel workers of each trial; more than one uses Ray Train."] = 1
    cpus_per_worker: Annotated[int, "CPUs (and torch threads) of each worker."] = 1
    gpus_per_worker: Annotated[
        float | None,
        "GPUs of each worker; a fraction shares a GPU, 0 trains on the CPU. 1 by default if there is a GPU, but 0 for heads.",
    ] = None
    engine: Annotated[
        Engine, "local: in the Tune actor; train: Ray Train workers. Default by the number of workers."
    ] = "local"
    placement: Annotated[
        Placement, "pack: a trial's workers on as few nodes as possible; spread: on as many as possible."
    ] = "pack"
    micro_batch: Annotated[
        int | None, "Pictures that a worker holds at a time, to save memory; losses still see the whole batch."
    ] = None

    @property
    def cpus(self) -> int:
        """CPUs of the whole trial."""
        return self.workers * self.cpus_per_worker

    @property
    def gpus(self) -> float:
        """GPUs of the whole trial."""
        return self.workers * self.share

    @property
    def share(self) -> float:
        """GPUs of each worker; 0 until `running.trials.gpu_sharing` has decided."""
        return self.gpus_per_worker or 0.0

    def problems(self) -> list[Problem]:
        """Return the problems of the requested resources."""
        counts = {"workers": self.workers, "cpus_per_worker": self.cpus_per_worker, "micro_batch": self.micro_batch}
        problems = [
            option_problem(name, "must be at least 1", count)
            for name, count in counts.items()
            if count is not None and count < 1
        ]
        for name, choice, allowed in (("engine", self.engine, Engine), ("placement", self.placement, Placement)):
            if choice not in get_args(allowed):  # possible from Python
                problems.append(option_problem(name, f"must be {' or '.join(get_args(allowed))}", choice))
        share = self.share
        if share < 0 or (share > 1 and share != int(share)):
            rule = "must be a share of one GPU or a whole number of them"
            problems.append(option_problem("gpus_per_worker", rule, share))
        if 0 < share < 1 and self.workers > 1:
            rule = "several workers of one trial cannot share a GPU"
            problems.append(option_problem("gpus_per_worker", rule, share, f"Use 1, or {spell('workers', 1)}."))
        if self.engine == "local" and self.workers > 1:
            rule = "engine local trains with one worker"
            problems.append(option_problem("engine", rule, self.workers, f"Use {spell('engine', 'train')}."))
        if self.placement == "spread" and self.workers == 1:
            rule = "places the workers of one trial, and each has one"
            problems.append(
                option_problem("placement", rule, self.placement, f"Leave it out, or use {spell('workers', 2)}.")
            )
        return problems


@dataclass(frozen=True)
class Racing:
    """Whether a sweep adds seeds until it is decided, and its limits."""

    until_decided: Annotated[bool, "Add seeds to undecided cells until every question is answered; grids only."] = False
    max_seeds: Annotated[int | None, f"With --until-decided: maximum number of seeds of a cell ({MAX_SEEDS})."] = None
    budget: Annotated[
        float | None, "With --until-decided: GPU-hours (worker-hours without GPUs) that trials may take."
    ] = None

    def problems(self) -> list[Problem]:
        """Return the problems of the limits of a race."""
        rule, remedy = "limits a race, which was not requested", f"Add {spell('until_decided')}, or leave it out."
        limits = {"max_seeds": self.max_seeds, "budget": self.budget}
        unused = [name for name, value in limits.items() if value is not None and not self.until_decided]
        problems = [option_problem(name, rule, None, remedy) for name in unused]
        if self.max_seeds is not None and self.max_seeds < _MIN_SEEDS:
            rule = f"must be at least {_MIN_SEEDS}: fewer seeds cannot tell noise from differences"
            problems.append(
                option_problem("max_seeds", rule, self.max_seeds, f"Use {spell('max_seeds', _MIN_SEEDS)} or more.")
            )
        if self.budget is not None and not self.budget > 0:
            rule = "must be more than 0 GPU-hours (worker-hours without GPUs)"
            problems.append(
                option_problem("budget", rule, self.budget, f"Example: {spell('budget', 8)}, or leave it out.")
            )
        return problems


@dataclass(frozen=True)
class Session:
    """How a session runs. None means that the environment or a default decides."""

    storage: Annotated[
        str | Path, "Folder that stores sweeps; on a cluster all nodes must see it, unless --trial-files is given."
    ] = Path("sweeps")
    address: Annotated[str | None, "Ray cluster: auto, local, HOST:PORT or ray://HOST:PORT."] = None
    max_concurrent: Annotated[int | None, "Maximum number of trials at a time; as many as fit by default."] = None
    time_budget: Annotated[float | None, "Seconds after which the sweep stops; it can be resumed."] = None
    gpu_hours: Annotated[
        float | None, "GPU-hours (worker-hours without GPUs) after which the sweep stops; it can be resumed."
    ] = None
    stall_limit: Annotated[
        float | None, "Seconds without a training step after which a trial restarts from its checkpoint."
    ] = None
    start_limit: Annotated[
        float | None, "The same limit before a trial's first step; --stall-limit by default, at least 600."
    ] = None
    trial_files: Annotated[
        str | None,
        "Object storage for files and checkpoints of trials (s3://BUCKET/PREFIX); the sweep's folder by default.",
    ] = None
    tracking_uri: Annotated[
        str | None, "MLflow store; MLFLOW_TRACKING_URI, the sweep's last one or ./mlflow.db by default."
    ] = None
    experiment: Annotated[str | None, "MLflow experiment; the sweep's last one or the space's name by default."] = None
    cache_dir: Annotated[str | Path | None, "Folder for decoded pictures."] = None

    @property
    def sweeps(self) -> Path:
        """Absolute path of the folder that stores sweeps."""
        return Path(self.storage).absolute()

    @property
    def cache(self) -> Path | None:
        """Absolute path of the cache of decoded pictures; None means the environment's or the home folder."""
        return Path(self.cache_dir).absolute() if self.cache_dir else None

    def problems(self) -> list[Problem]:
        """Return the problems of storage, experiment and limits."""
        problems = [*folder_problems(option_place("storage"), self.storage), *bucket_problems(self.trial_files)]
        if self.experiment is not None and not (self.experiment.strip() and self.experiment.isprintable()):
            problems.append(option_problem("experiment", "must be a name of printable characters", self.experiment))
        for name, number, rule in (
            ("max_concurrent", self.max_concurrent, "must be at least 1"),
            ("time_budget", self.time_budget, "must be more than 0 seconds"),
            ("gpu_hours", self.gpu_hours, "must be more than 0 hours"),
        ):
            if number is not None and not number > 0:
                problems.append(option_problem(name, rule, number))
        for name, limit in (("stall_limit", self.stall_limit), ("start_limit", self.start_limit)):
            if limit is not None and not limit >= _MIN_STALL:
                rule = f"must be at least {_MIN_STALL:g} seconds, because a start, an evaluation or a checkpoint takes time"
                problems.append(option_problem(name, rule, limit, f"Example: {spell(name, 600)}."))
        return problems


def margin_problems(margin: float | None, paper_sd: float | None = None) -> list[Problem]:
    """Return a problem for a margin, or a papers' standard deviation, that is not positive; None is allowed."""
    sd = "the papers' run-to-run standard deviation"
    checked = (
        ("margin", margin, "the smallest difference that matters", f"{spell('margin', 1.0)} for one percentage point"),
        ("paper_sd", paper_sd, sd, f"{spell('paper_sd', 0.5)} for half a percentage point"),
    )
    return [
        option_problem(option, f"{what} must be greater than 0", number, f"Example: {example}.")
        for option, number, what, example in checked
        if number is not None and not 0 < number < math.inf
    ]


def folder_problems(flag: str, folder: str | Path | None, remedy: str = "Choose another folder.") -> list[Problem]:
    """Return why a folder cannot be written to, or created if it is missing. Leave no file behind."""
    if folder is None or folder == "":  # pathlib reads an empty path as the working directory
        return [] if folder is None else [Problem(flag, "must name a folder", folder)]
    folder = Path(folder).absolute()
    folders = (folder, *folder.parents)
    try:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            folder.stat()
        if broken_link := next((path for path in folders if path.is_symlink() and not path.exists()), None):
            rule = f"must be a folder, but {broken_link} is a link to {broken_link.readlink()}, which does not exist"
            return [Problem(flag, rule, None, "Mount it or create it, or choose another folder.")]
        if found := file_problems(flag, folder):
            return found
        with tempfile.TemporaryDirectory(dir=next(path for path in folders if path.exists()), prefix=".tune-dml-"):
            return []
    except (OSError, ValueError) as error:  # such as a name that is too long
        rule = f"must be a folder that can be written: {getattr(error, 'strerror', None) or error}"
    return [Problem(flag, rule, str(folder), remedy)]


def file_problems(flag: str, folder: Path) -> list[Problem]:
    """Return a problem if a folder or one of its parents is a file. Write nothing."""
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    if existing.is_dir():
        return []
    rule = f"must be a folder, but {existing} is a file"
    return [Problem(flag, rule, None if existing == folder else str(folder), "Choose another folder.")]
