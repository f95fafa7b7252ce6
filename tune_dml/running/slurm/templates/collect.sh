{% include "submit.sh" %}
# Moves the results of the array's trials into the ledger, as its only writer, and writes the next round.
{{ command }} collect {{ folder }}
code=$?
if [ "$code" = {{ follows }} ]; then
    submit --array="$(cat {{ folder }}/slurm/array)" {{ folder }}/slurm/array.sh || exit 1
    submit --dependency=afterany:"${number%%;*}" {{ script }} || exit 1
    exit 0
fi
exit "$code"
