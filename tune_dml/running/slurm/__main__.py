"""Entry point of the batch scripts: `python -m tune_dml.running.slurm node|collect|task|check FOLDER`."""

import sys
from pathlib import Path


def _main() -> int:
    verb, folder, *rest = sys.argv[1:]
    if verb in {"node", "collect"}:
        from tune_dml.running.slurm.node import run_collector, run_node

        return (run_node if verb == "node" else run_collector)(Path(folder))
    if verb == "check":
        from tune_dml.running.slurm.node_check import write_answer
        from tune_dml.running.slurm.profile import profile_file, read_profile

        return write_answer(Path(folder), read_profile(profile_file()).temp)
    from tune_dml.running.slurm.task import run_task

    return run_task(Path(folder), int(rest[0]))


if __name__ == "__main__":
    sys.exit(_main())
