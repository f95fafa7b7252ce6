#!/bin/bash
# The sweep sec_rho, written by `tune-dml submit slurm`.

#SBATCH --job-name=tune-dml-sec_rho
#SBATCH --output=/shared/sweeps/sec_rho/slurm/%A_%a.log
#SBATCH --open-mode=append
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --partition=gpu
#SBATCH --gres=gpu:4
#SBATCH --time=04:00:00
#SBATCH --requeue
#SBATCH --signal=B:USR1@300

export PYTHONUNBUFFERED=1 COLUMNS=120

# A task trains its trials one after the other, without Ray. What it has not finished comes in the next round.
python -m tune_dml.running.slurm task /shared/sweeps/sec_rho "$SLURM_ARRAY_TASK_ID" &
task=$!
trap 'kill -USR1 "$task"' USR1 TERM
wait "$task"
while kill -0 "$task" 2> /dev/null; do    # a signal ends `wait`, not the process
    wait "$task"
done
wait "$task"
code=$?

exit "$code"
