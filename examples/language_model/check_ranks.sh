#!/usr/bin/env bash
# The same training on other numbers of ranks, in other layouts and without the library: the losses
# must agree step by step. Then a checkpoint that goes on on another number of ranks.
# usage: check_ranks.sh LANGUAGE_MODEL MPIRUN FOLDER
set -euo pipefail
trainer="$1" mpirun="$2" folder="$3"
rm -rf "$folder"
mkdir -p "$folder"
cd "$folder"

model=(--context 3 --width 32 --hidden 48 --layers 2 --length 16 --chunk-rows 50
  --steps 30 --evaluate-every 1000 --progress none)

train() {
  local ranks="$1" name="$2"
  shift 2
  "$mpirun" -n "$ranks" --bind-to none "$trainer" "${model[@]}" --batch "${batch:-8}" --curve "$name.csv" "$@" \
    > "$name.log"
}
agrees() { "$trainer" --compare "$1.csv" "$2.csv" --tolerance 3e-5; }

train 1 dense --dense
for ranks in 1 2 4; do
  train "$ranks" "replicated$ranks"
  agrees dense "replicated$ranks"
done
train 3 rows --layout row_sharded
agrees dense rows
train 4 grid --tensor-parallel 2
agrees dense grid
train 4 strided --tensor-parallel 2 --grid strided --layout row_sharded --micro-batches 3
agrees dense strided
batch=2 train 4 fsdp --fsdp # 2 of each rank
agrees dense fsdp

train 4 begin --stop-after 12 --save checkpoint.safetensors
train 3 end --resume checkpoint.safetensors --layout row_sharded
{ cat begin.csv; tail -n +2 end.csv; } > resumed.csv
agrees dense resumed

# A comparison that always passes would be no test.
train 1 other --seed 2
if agrees dense other; then
  echo "another seed gave the same curve" >&2
  exit 1
fi
