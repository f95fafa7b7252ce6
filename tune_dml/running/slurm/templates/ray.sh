{% include "submit.sh" %}
# SLURM sends USR1 before the time is up, `tune-dml cancel slurm` sends USR2. srun forwards it to the tasks: trials keep
# their checkpoints and the session ends in order.
time_is_up=no told=no step=
tell() { told=yes; [ -z "$step" ] || kill -USR1 "$step" 2> /dev/null; }
trap 'time_is_up=yes; tell' USR1
trap tell USR2 TERM

# One task per node. The first one leads: it starts a Ray for this job only and runs the sweep on it.
srun {{ srun }} {{ command }} node {{ folder }} &
step=$!
[ "$told" = no ] || tell
{% with process = "step" %}{% include "wait.sh" %}{% endwith %}
# 130: interrupted, resumable. What is finished never runs again; a running trial continues from its checkpoint.
# SLURM sends TERM to a job that it preempts, and does not queue it again if it ends within its grace time.
if [ "$code" = 130 ] && scontrol show job "$SLURM_JOB_ID" | grep -q ' PreemptTime=[0-9]'; then
    time_is_up=yes
fi
jobs=$((${TUNE_DML_JOBS:-1} + ${SLURM_RESTART_COUNT:-0}))    # in a row
if [ "$time_is_up" = yes ] && [ "$code" = 130 ] && [ "$jobs" -lt {{ most }} ]; then
    trap '' USR1 USR2 TERM
    {% if requeue %}scontrol requeue "$SLURM_JOB_ID" ||
        {% endif %}TUNE_DML_JOBS=$((jobs + 1)) submit --dependency=afterany:"$SLURM_JOB_ID" {{ script }}
fi
exit "$code"
