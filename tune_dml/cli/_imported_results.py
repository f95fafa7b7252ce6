"""Where results are read that no sweep of ours made, and what has to be said of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from trainables.errors import Problem
from tune_dml.cli.options import absolute
from tune_dml.text import one_line

if TYPE_CHECKING:
    from tune_dml.record.imported import ImportRequest
    from tune_dml.record.results import Results


@dataclass(frozen=True)
class ImportSource:
    """Another program's results; all None for a sweep of ours."""

    from_csv: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Report a table: a row a training, a column a setting.")
    ] = None
    from_optuna: Annotated[
        str | None, typer.Option(metavar="STORAGE", help="Report an Optuna study, such as sqlite:///x.db.")
    ] = None
    from_ray: Annotated[Path | None, typer.Option(metavar="DIR", help="Report an experiment's folder of Ray Tune.")] = (
        None
    )
    from_mlflow: Annotated[
        str | None, typer.Option(metavar="URI", help="Report the runs of an MLflow --experiment.")
    ] = None
    study: Annotated[str | None, typer.Option(help="The Optuna study, where there are several.")] = None

    @property
    def sources(self) -> dict[str, object]:
        """Flag -> where to read, of those that were given."""
        flags = {"--from-csv": self.from_csv, "--from-optuna": self.from_optuna, "--from-ray": self.from_ray,
                 "--from-mlflow": self.from_mlflow}  # fmt: skip
        return {flag: value for flag, value in flags.items() if value is not None}

    def problems(self, sweeps: list[str], reading: Reading) -> list[Problem]:
        """What does not go together: one source, or sweeps of ours."""
        given = [*self.sources, *(["SWEEP"] if sweeps else [])]
        if not given:
            flags = "--from-csv, --from-optuna, --from-ray or --from-mlflow"
            return [
                Problem("SWEEP", "a report needs results", None, f"Name a sweep, or read another program's by {flags}.")
            ]
        if len(given) > 1:
            return [Problem(given[0], "a report reads one source", f"{', '.join(given)}", "Leave the others out.")]
        return reading.needless({"--study": self.study}) if sweeps else []

    def read(self, reading: Reading, margin: float | None, experiment: str | None, output: Path | None) -> Results:
        """The results. Raises ConfigError with what is wrong with them."""
        from tune_dml.record import imported

        (source,) = self.sources.values()
        names = {"--from-csv": Path(str(source)).stem, "--from-ray": Path(str(source)).name, "--from-optuna": self.study,
                 "--from-mlflow": experiment}  # fmt: skip
        request = reading.request(names[next(iter(self.sources))], margin)
        if self.from_csv is not None:
            data = imported.read_csv(absolute(self.from_csv) or self.from_csv, request)
        elif self.from_ray is not None:
            data = imported.read_ray(absolute(self.from_ray) or self.from_ray, request)
        elif self.from_optuna is not None:
            data = imported.read_optuna(self.from_optuna, self.study, request)
        else:
            from tune_dml.tracking.experiments import read_mlflow

            data = read_mlflow(str(self.from_mlflow), experiment, request)
        return imported.results_of_rows(data, request, (output or Path.cwd()) / "elsewhere" / request.name)


@dataclass(frozen=True)
class Reading:
    """Options for reading another program's results."""

    metric: Annotated[str | None, typer.Option(help="The column or metric that is judged.")] = None
    goal: Annotated[
        Literal["maximize", "minimize"] | None,
        typer.Option(help="What is better; maximize where the source says nothing."),
    ] = None
    seed_column: Annotated[
        str | None, typer.Option(help="The setting that is the seed; `seed` where there is one.")
    ] = None
    knob: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="A setting to ask about; all that vary; repeatable.")
    ] = None

    def request(self, name: str | None, margin: float | None) -> ImportRequest:
        """What the user says of results, which are called by a name."""
        from tune_dml.record.imported import ImportRequest

        called = one_line(name or "results") or "results"
        return ImportRequest(called, self.metric, self.goal, margin, self.seed_column, tuple(self.knob or ()))

    def needless(self, others: Mapping[str, object]) -> list[Problem]:
        """The flags that were given, these and `others`, where nothing but sweeps of ours is read."""
        alone = {**others, "--metric": self.metric, "--goal": self.goal, "--seed-column": self.seed_column,
                 "--knob": self.knob}  # fmt: skip
        rule = "says how another program's results are read; a sweep of ours knows it"
        return [Problem(flag, rule, value, "Leave it out.") for flag, value in alone.items() if value]
