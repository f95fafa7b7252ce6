
# A task trains its trials one after the other, without Ray. What it has not finished comes in the next round.
{{ command }} task {{ folder }} "$SLURM_ARRAY_TASK_ID" &
task=$!
trap 'kill -USR1 "$task"' USR1 TERM
wait "$task"
while kill -0 "$task" 2> /dev/null; do    # a signal ends `wait`, not the task
    wait "$task"
done
wait "$task"
code=$?
exit "$code"
