# shellcheck shell=bash
# Sourced by test_gpu, bench_gpu and demo: the GPUs of this machine, and a build for them.

# find_gpus: sets `gpus` to those that may be used.
# shellcheck disable=SC2034 # whoever sources this reads it
find_gpus() {
  if [[ -n "${CUDA_VISIBLE_DEVICES:-}" ]]; then
    IFS=, read -ra gpus <<< "$CUDA_VISIBLE_DEVICES"
  else
    mapfile -t gpus < <({ nvidia-smi --query-gpu=index --format=csv,noheader 2> /dev/null || true; })
  fi
}

# on_each_gpu FUNCTION ITEM...: FUNCTION GPU ITEM for all of them; two GPUs at most, each of which takes
# the next item when it is free.
on_each_gpu() {
  local each="$1" next gpu pid workers=()
  shift
  local items=("$@")
  next="$(mktemp)"
  echo 0 > "$next"
  take() {
    local index lock
    exec {lock}< "$next"
    flock "$lock"
    index="$(< "$next")"
    echo $((index + 1)) > "$next"
    exec {lock}<&-
    echo "$index"
  }
  worker() {
    local index
    while index="$(take)" && ((index < ${#items[@]})); do "$each" "$1" "${items[index]}"; done
  }
  for gpu in "${gpus[@]:0:2}"; do
    worker "$gpu" &
    workers+=($!)
  done
  for pid in "${workers[@]}"; do wait "$pid"; done
  rm -f "$next"
}

# build_for_gpus ROOT LOG TARGET...: builds into ROOT/build-cuda; the end of LOG where that fails.
build_for_gpus() {
  local root="$1" log="$2" options=(-DCMAKE_BUILD_TYPE=Release -DSHARDLOSS_CUDA=ON) capability
  shift 2
  # For the GPU that is here alone: all architectures would take several times as long.
  capability="$({ nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2> /dev/null || true; } |
    sort -u | head -n 1 | tr -d .)"
  if [[ -n "$capability" ]]; then options+=("-DCMAKE_CUDA_ARCHITECTURES=$capability-real"); fi
  if ! {
    cmake -S "$root" -B "$root/build-cuda" -G Ninja "${options[@]}" &&
      cmake --build "$root/build-cuda" --target "$@"
  } > "$log" 2>&1; then
    tail -n 40 "$log" >&2
    return 1
  fi
}
