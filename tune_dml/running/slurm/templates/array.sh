
# A task trains its trials one after the other, without Ray. What it has not finished comes in the next round.
{{ command }} task {{ folder }} "$SLURM_ARRAY_TASK_ID" &
task=$!
trap 'kill -USR1 "$task"' USR1 TERM
{% with process = "task" %}{% include "wait.sh" %}{% endwith %}
exit "$code"
