#!/bin/bash
# Trains under Open MPI's mpirun. After a failure it starts again on the hosts that still answer, and the trainer resumes from the latest
# checkpoint. On SIGTERM, the ranks have GRACE_SECONDS to save.
#
#   HOSTS="node1 node2" examples/jobs/mpirun.sh ./trainer /shared/run 1000
#
# HOSTS           the hosts, all of which see the run's directory (default: localhost)
# CAIRN_...       passed on to the ranks; several machines need CAIRN_SECRET_FILE
# RANKS_PER_HOST  default: 2
# RESTARTS_MAX    default: 10
# REMOTE_SHELL    how to reach a host (default: ssh); not used for one that is this machine
# MPIRUN          the command, with options of its own (default: mpirun)
# GRACE_SECONDS   default: 30. Open MPI's own default is 1 s; mpirun ends after twice this time, even if the ranks end sooner
set -uo pipefail

remote_shell=${REMOTE_SHELL:-ssh}
ranks_per_host=${RANKS_PER_HOST:-2}

is_stopped=false
job=
trap 'is_stopped=true; [ -z "$job" ] || kill -TERM "$job"' TERM

answers() { [ "$1" = localhost ] || "$remote_shell" "$1" true; }

for ((start = 0; start <= ${RESTARTS_MAX:-10}; ++start)); do
  hosts=()
  for host in ${HOSTS:-localhost}; do
    if answers "$host"; then hosts+=("$host"); fi
  done
  [ ${#hosts[@]} -gt 0 ] || { echo "none of the hosts answers: ${HOSTS:-localhost}" >&2; exit 1; }
  echo "start $start on ${hosts[*]}"
  # Rank 0 runs on the first host. mpirun does not tell the ranks which one that is.
  export MASTER_ADDR=${hosts[0]}
  passed=(-x MASTER_ADDR)
  for variable in $(compgen -e CAIRN_); do passed+=(-x "$variable"); done
  # shellcheck disable=SC2086  # a command may have options
  ${MPIRUN:-mpirun} --mca plm_rsh_agent "$remote_shell" --host "$(printf "%s:$ranks_per_host," "${hosts[@]}")" \
    --mca odls_base_sigkill_timeout "${GRACE_SECONDS:-30}" -np $((${#hosts[@]} * ranks_per_host)) "${passed[@]}" "$@" &
  job=$!
  wait "$job"
  status=$?
  while kill -0 "$job" 2>/dev/null; do  # the signal has interrupted the wait
    wait "$job"
    status=$?
  done
  if [ "$status" = 0 ] || $is_stopped; then exit "$status"; fi
done
exit 1
