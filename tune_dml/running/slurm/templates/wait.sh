wait "${{ process }}"
while kill -0 "${{ process }}" 2> /dev/null; do    # a signal ends `wait`, not the process
    wait "${{ process }}"
done
wait "${{ process }}"
code=$?
