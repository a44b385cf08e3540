#!/usr/bin/env bash
# Runs a PyTorch script that uses the shardloss package, one process a GPU (without GPUs: a core).
#   launch/torchrun.sh SCRIPT.py [ARGUMENT...]
#   NODES=2 NODE_RANK=0 MASTER_ADDR=host0 launch/torchrun.sh SCRIPT.py [ARGUMENT...]   on each node
# PROCESSES sets the number per node, MASTER_PORT the port of node 0 (29500).
set -euo pipefail

if (($# < 1)); then
  sed -n '2,5s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2
  exit 2
fi
if ! command -v torchrun > /dev/null; then
  echo "torchrun is not here: pip install torch" >&2
  exit 1
fi
gpus="$({ nvidia-smi --list-gpus 2> /dev/null || true; } | wc -l)"
processes="${PROCESSES:-$((gpus > 0 ? gpus : $(nproc)))}"
cores="$(nproc)"
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-$((cores / processes > 0 ? cores / processes : 1))}"

if ((${NODES:-1} == 1)); then
  exec torchrun --standalone --nproc-per-node "$processes" "$@"
fi
exec torchrun --nnodes "$NODES" --node-rank "${NODE_RANK:?number of this node, from 0}" \
  --nproc-per-node "$processes" --master-addr "${MASTER_ADDR:?host name of node 0}" \
  --master-port "${MASTER_PORT:-29500}" "$@"
