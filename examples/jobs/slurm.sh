#!/bin/bash
# A Slurm job that trains on one or two nodes, whatever is free. It is requeued, and resumes from the latest checkpoint, when its time
# is over or a node fails.
#
#   sbatch examples/jobs/slurm.sh ./trainer /shared/run 1000
#
# Two nodes need a secret: set CAIRN_SECRET_FILE to a file that both see (docs/launching.md). sbatch passes the variable on.
# The trainer saves on SIGTERM, and resumes by itself. Losing one task ends the others: they could not go on alone.
#SBATCH --nodes=1-2
#SBATCH --mincpus=2
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@120
set -uo pipefail

time_is_over=false
# Two minutes before the end: lets the tasks save.
trap 'time_is_over=true; scancel --signal=TERM "$SLURM_JOB_ID"' USR1

# The number of tasks belongs to the step: Slurm would keep that of the job when it is requeued on fewer nodes.
echo "start ${SLURM_RESTART_COUNT:-0} on $SLURM_JOB_NODELIST"
srun --ntasks-per-node=2 --kill-on-bad-exit=1 "$@" &
step=$!
wait "$step"
status=$?
while kill -0 "$step" 2>/dev/null; do  # the signal has interrupted the wait
  wait "$step"
  status=$?
done
if $time_is_over; then scontrol requeue "$SLURM_JOB_ID"; fi
exit "$status"
