"""Options to read results of other programs."""

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
    """The source of another program's results; all None for a sweep."""

    from_csv: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Report a table: one row per training, one column per setting.")
    ] = None
    from_optuna: Annotated[
        str | None, typer.Option(metavar="STORAGE", help="Report an Optuna study, such as sqlite:///x.db.")
    ] = None
    from_ray: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Report the folder of a Ray Tune experiment.")
    ] = None
    from_mlflow: Annotated[
        str | None, typer.Option(metavar="URI", help="Report the runs of an MLflow --experiment.")
    ] = None
    study: Annotated[str | None, typer.Option(help="The Optuna study, if there are several.")] = None

    @property
    def sources(self) -> list[str]:
        """The flags of the given sources."""
        names = ("from_csv", "from_optuna", "from_ray", "from_mlflow")
        return [f"--{name.replace('_', '-')}" for name in names if getattr(self, name) is not None]

    def problems(self, sweeps: list[str], options: ImportOptions) -> list[Problem]:
        """Return the problems of the given flags: a report reads one source, or sweeps."""
        given = [*self.sources, *(["SWEEP"] if sweeps else [])]
        if not given:
            remedy = (
                "Name a sweep, or read another program's by --from-csv, --from-optuna, --from-ray or --from-mlflow."
            )
            return [Problem("SWEEP", "a report needs results", None, remedy)]
        if len(given) > 1:
            return [Problem(given[0], "a report reads one source", f"{', '.join(given)}", "Leave the others out.")]
        return options.unused_problems({"--study": self.study}) if sweeps else []

    def read(
        self, options: ImportOptions, margin: float | None, experiment: str | None, output: Path | None
    ) -> Results:
        """Read the results. Raises ConfigError with all problems."""
        from tune_dml.record import imported

        if self.from_csv is not None:
            request = options.request(self.from_csv.stem, margin)
            data = imported.read_csv(absolute(self.from_csv), request)
        elif self.from_ray is not None:
            request = options.request(self.from_ray.name, margin)
            data = imported.read_ray(absolute(self.from_ray), request)
        elif self.from_optuna is not None:
            request = options.request(self.study, margin)
            data = imported.read_optuna(self.from_optuna, self.study, request)
        else:
            from tune_dml.tracking.experiments import read_mlflow

            request = options.request(experiment, margin)
            data = read_mlflow(str(self.from_mlflow), experiment, request)
        return imported.results_of_rows(data, request, (output or Path.cwd()) / "elsewhere" / request.name)


@dataclass(frozen=True)
class ImportOptions:
    """Options for reading another program's results."""

    metric: Annotated[str | None, typer.Option(help="The column or metric by which results are judged.")] = None
    goal: Annotated[
        Literal["maximize", "minimize"] | None,
        typer.Option(help="Which values are better; maximize if the source does not say."),
    ] = None
    seed_column: Annotated[
        str | None, typer.Option(help="The setting that is the seed; by default `seed`, if there is one.")
    ] = None
    knob: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="A setting to judge; by default all that vary; repeatable.")
    ] = None

    def request(self, name: str | None, margin: float | None) -> ImportRequest:
        """Return the request to read results under a name."""
        from tune_dml.record.imported import ImportRequest

        title = one_line(name or "results") or "results"
        return ImportRequest(title, self.metric, self.goal, margin, self.seed_column, tuple(self.knob or ()))

    def unused_problems(self, more_flags: Mapping[str, object]) -> list[Problem]:
        """Return a problem for each given flag of this group and of `more_flags`, because sweeps do not use them."""
        flags = {**more_flags, "--metric": self.metric, "--goal": self.goal, "--seed-column": self.seed_column,
                 "--knob": self.knob}  # fmt: skip
        rule = "applies only to results of other programs; a sweep has its own"
        return [Problem(flag, rule, value, "Leave it out.") for flag, value in flags.items() if value]
