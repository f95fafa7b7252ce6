
# Submits a job and notes its number. Without the number `status` and `cancel` would not know the job, so it is removed. A new
# job inherits this environment, but not how often this job was queued again.
submit() {
    number=$(env -u SLURM_RESTART_COUNT sbatch --parsable "$@") || return
    echo "$number" >> {{ jobs }} || { scancel "${number%%;*}"; return 1; }
}
