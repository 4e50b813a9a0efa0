#!/bin/bash
# Trains under torchrun on one to NODES machines. Run it on each of them. When a machine or a rank fails, torchrun starts the ranks of the
# remaining machines again, and the trainer resumes from the latest checkpoint.
#
#   RENDEZVOUS=node1:29400 examples/jobs/torchrun.sh ./trainer /shared/run 1000
#
# Several machines need a secret: set CAIRN_SECRET_FILE on each of them (docs/launching.md).
#
# RENDEZVOUS      host and port of one of the machines (default: localhost:29400)
# JOB             a name for the job, the same on all machines (default: cairn)
# NODES           at most so many machines (default: 2)
# RANKS_PER_NODE  default: 2
# TORCHRUN        the command, with options of its own (default: torchrun -r 1 -t 1; without these two, that of Debian 12, PyTorch 1.13 under
#                 Python 3.11, starts no rank)
set -uo pipefail

# shellcheck disable=SC2086  # a command may have options
exec ${TORCHRUN:-torchrun -r 1 -t 1} --nnodes "1:${NODES:-2}" --nproc_per_node "${RANKS_PER_NODE:-2}" --max_restarts 10 --rdzv_id "${JOB:-cairn}" \
  --rdzv_backend c10d --rdzv_endpoint "${RENDEZVOUS:-localhost:29400}" --no_python "$@"
