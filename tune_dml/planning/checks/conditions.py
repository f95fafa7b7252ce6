"""Translate the conditions of printed numbers into our settings, to compare them with those of a cell.

Three declarations state the conditions; later ones win: the authors' protocol, the method of the table, and the
hyperparameters of the row. Settings that neither the paper nor the released code states are listed as not printed.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath

from trainables.config import Value
from tune_dml.catalogue import papers, protocols
from tune_dml.papers.published import PublishedRow, is_cited
from tune_dml.space import PaperTable, PrintedMethod
from tune_dml.text import is_number, spelling_key

# Settings of computation, display and storage, then settings that a table states as its selection of classes.
_NO_CONDITION = ("evaluation.", "task.test_sets", "training.eval_every", "training.micro_batch", "training.precision")
_OF_SELECTION = ("data.split", "data.validation_fraction", "task.name")
_ALIASES = {"cub2002011": "cub200", "caltechucsdbirds": "cub200", "stanfordcars": "cars196"}


@dataclass(frozen=True)
class Conditions:
    """The settings behind a printed number."""

    settings: Mapping[str, Value]  # settings that the paper or the released code states
    unprinted: tuple[str, ...]  # settings that neither states, or that the table leaves open

    def differing(self, settings: Mapping[str, Value]) -> dict[str, tuple[Value, Value]]:
        """Return the settings in which a cell differs: setting -> (ours, printed)."""
        pairs = {path: (settings.get(path), printed) for path, printed in self.settings.items()}
        return {path: (ours, printed) for path, (ours, printed) in pairs.items() if not equals_printed(ours, printed)}


def conditions_of(row: PublishedRow) -> Conditions | None:
    """Return the conditions of a printed number; None if they are not declared, or the number is cited from others."""
    table = table_of(row.paper, row.table)
    method = table.method(row.method) if table else None
    if table is None or method is None or is_cited(row):
        return None
    stated, unknown = _protocol(method, row.dataset)
    printed = {path: row.hyperparameters[key] for key, path in method.knobs.items() if key in row.hyperparameters}
    own = {**method.settings, **printed}
    left_out = [*method.unprinted, *(path for path in table.unprinted if _has_setting(method, path))]
    settings = {path: value for path, value in {**stated, **own}.items() if path not in left_out or path in printed}
    return Conditions(settings, tuple(dict.fromkeys([*left_out, *(path for path in unknown if path not in own)])))


def _has_setting(method: PrintedMethod, path: str) -> bool:
    """Return whether a method has a setting; eta needs a regularizer, K needs a loss with K."""
    if path.startswith("regularizer."):
        return method.settings.get("regularizer.name") != "none"
    return not path.startswith("loss.") or path in method.knobs.values()


def our_name(dataset: str) -> str:
    """Return our name of a data set: `CUB200-2011` -> `cub200`."""
    return _ALIASES.get(spelling_key(dataset), spelling_key(dataset))


def table_of(source: str, number: str) -> PaperTable | None:
    """Return a printed table by its `paper` and `table` in the file of numbers; None if it is not declared."""
    tables = (table for paper in papers().values() for table in paper.tables)
    return next((table for table in tables if (table.source, table.number) == (source, number)), None)


def _protocol(method: PrintedMethod, dataset: str) -> tuple[dict[str, Value], tuple[str, ...]]:
    """Return the settings that a method's protocol states and leaves open. Skip settings of other losses."""
    protocol = protocols().get(method.protocol.format(our_name(dataset)))
    if protocol is None:
        return {}, ()
    same_loss = protocol.settings.get("loss.name") in {None, method.settings.get("loss.name")}
    stated: dict[str, Value] = {}
    unknown = []
    for path, value in protocol.settings.items():
        if path.startswith(_NO_CONDITION) or path in _OF_SELECTION or (path.startswith("loss.") and not same_loss):
            continue
        if protocol.sources.get(path, "open").startswith("open"):
            unknown.append(path)
        else:
            stated[path] = value
    return stated, tuple(unknown)


def equals_printed(ours: object, printed: object) -> bool:
    """Return whether our value equals the printed one, apart from rounding of numbers and the folder of a file."""
    if is_number(ours) and is_number(printed):
        return math.isclose(ours, printed, rel_tol=1e-6)
    if isinstance(ours, list | tuple) and isinstance(printed, list | tuple):
        return len(ours) == len(printed) and all(map(equals_printed, ours, printed))
    return ours == printed or (isinstance(ours, str) and PurePath(ours).name == printed)
