#!/bin/bash
# The sweep sec_rho, written by `tune-dml submit slurm`.

#SBATCH --job-name=tune-dml-sec_rho
#SBATCH --output=/shared/sweeps/sec_rho/slurm/%j.log
#SBATCH --open-mode=append
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --partition=gpu
#SBATCH --time=04:00:00
#SBATCH --requeue

export PYTHONUNBUFFERED=1 COLUMNS=120

# Moves the results of the array's trials into the ledger, as its only writer, and writes the next round.
python -m tune_dml.running.slurm collect /shared/sweeps/sec_rho
code=$?
if [ "$code" = 75 ]; then
    array=$(env -u SLURM_RESTART_COUNT sbatch --parsable --array="$(cat /shared/sweeps/sec_rho/slurm/array)" /shared/sweeps/sec_rho/slurm/array.sh) || exit 1
    echo "$array" >> /shared/sweeps/sec_rho/slurm/jobs
    env -u SLURM_RESTART_COUNT sbatch --parsable --dependency=afterany:"${array%%;*}" /shared/sweeps/sec_rho/slurm/job.sh >> /shared/sweeps/sec_rho/slurm/jobs || exit 1
    exit 0
fi
exit "$code"
