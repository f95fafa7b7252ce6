"""`tune-dml rm`: remove a sweep from the disk."""

import shutil
from pathlib import Path

from tune_dml.cli.options import Json, SweepArgument, Yes, confirm_or_abort, raise_if_link, verb
from tune_dml.cli.screen import print_result

ORDER = 71
EXAMPLES = """
tune-dml rm old                                       # asks first
tune-dml rm old --yes
"""


@verb
def rm(sweep_name: SweepArgument, *, yes: Yes = False, storage: Path, as_json: Json = False) -> None:
    """Remove a sweep and all its files, also in object storage. Its MLflow runs stay; a running sweep is refused."""
    from tune_dml.record.fetching import delete_remaining_files
    from tune_dml.record.ledger import Ledger
    from tune_dml.record.results import Results
    from tune_dml.record.state import load_state
    from tune_dml.running.slurm.jobs import raise_if_jobs_are_open

    raise_if_link(storage.absolute() / sweep_name, "rm")
    state = load_state(storage.absolute(), sweep_name)
    results = Results.of(state)
    finished = results.count("finished")
    confirm_or_abort(f"Remove {results.folder} with {finished} finished trials?", yes)
    raise_if_jobs_are_open(results.folder)
    with Ledger(results.folder):  # fails while another process runs the sweep
        delete_remaining_files(state)
        trash = results.folder.with_name(f".{results.folder.name}.removed")
        shutil.rmtree(trash, ignore_errors=True)  # from a removal that was killed
        results.folder.rename(trash)
    shutil.rmtree(trash)
    text = f"Removed {results.folder} ({finished} finished trials). Its runs in MLflow are still there."
    print_result({"removed": str(results.folder), "finished": finished}, [text], as_json, wrap=False)
