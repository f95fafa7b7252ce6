#!/bin/bash
# The sweep sec_rho, written by `tune-dml submit slurm`.

#SBATCH --job-name=tune-dml-sec_rho
#SBATCH --output=/shared/sweeps/sec_rho/slurm/%j.log
#SBATCH --open-mode=append
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --partition=gpu
#SBATCH --gres=gpu:4
#SBATCH --time=04:00:00
#SBATCH --requeue
#SBATCH --signal=B:USR1@300

export PYTHONUNBUFFERED=1 COLUMNS=120

# Submits a job and notes its number. Without the number `status` and `cancel` would not know the job, so it is removed. A new
# job inherits this environment, but not how often this job was queued again.
submit() {
    number=$(env -u SLURM_RESTART_COUNT sbatch --parsable "$@") || return
    echo "$number" >> /shared/sweeps/sec_rho/slurm/jobs || { scancel "${number%%;*}"; return 1; }
}

# SLURM sends USR1 before the time is up, `tune-dml cancel slurm` sends USR2. srun forwards it to the tasks: trials keep
# their checkpoints and the session ends in order.
time_is_up=no told=no step=
tell() { told=yes; [ -z "$step" ] || kill -USR1 "$step" 2> /dev/null; }
trap 'time_is_up=yes; tell' USR1
trap tell USR2 TERM

# One task per node. The first one leads: it starts a Ray for this job only and runs the sweep on it.
srun --ntasks-per-node=1 --cpus-per-task=8 --wait=30 python -m tune_dml.running.slurm node /shared/sweeps/sec_rho &
step=$!
[ "$told" = no ] || tell
wait "$step"
while kill -0 "$step" 2> /dev/null; do    # a signal ends `wait`, not the process
    wait "$step"
done
wait "$step"
code=$?

# 130: interrupted, resumable. What is finished never runs again; a running trial continues from its checkpoint.
# SLURM sends TERM to a job that it preempts, and does not queue it again if it ends within its grace time.
if [ "$code" = 130 ] && scontrol show job "$SLURM_JOB_ID" | grep -q ' PreemptTime=[0-9]'; then
    time_is_up=yes
fi
jobs=$((${TUNE_DML_JOBS:-1} + ${SLURM_RESTART_COUNT:-0}))    # in a row
if [ "$time_is_up" = yes ] && [ "$code" = 130 ] && [ "$jobs" -lt 100 ]; then
    trap '' USR1 USR2 TERM
    scontrol requeue "$SLURM_JOB_ID" ||
        TUNE_DML_JOBS=$((jobs + 1)) submit --dependency=afterany:"$SLURM_JOB_ID" /shared/sweeps/sec_rho/slurm/job.sh
fi
exit "$code"
