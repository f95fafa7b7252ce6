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

# Submits a job and notes its number. Without the number `status` and `cancel` would not know the job, so it is removed. A new
# job inherits this environment, but not how often this job was queued again.
submit() {
    number=$(env -u SLURM_RESTART_COUNT sbatch --parsable "$@") || return
    echo "$number" >> /shared/sweeps/sec_rho/slurm/jobs || { scancel "${number%%;*}"; return 1; }
}

# Moves the results of the array's trials into the ledger, as its only writer, and writes the next round.
python -m tune_dml.running.slurm collect /shared/sweeps/sec_rho
code=$?
if [ "$code" = 75 ]; then
    submit --array="$(cat /shared/sweeps/sec_rho/slurm/array)" /shared/sweeps/sec_rho/slurm/array.sh || exit 1
    submit --dependency=afterany:"${number%%;*}" /shared/sweeps/sec_rho/slurm/job.sh || exit 1
    exit 0
fi
exit "$code"
