#!/usr/bin/env bash
# Runs a program on ranks of this host, or of the hosts in a file.
#   launch/mpirun.sh RANKS PROGRAM [ARGUMENT...]
#   HOSTFILE=hosts RANKS_PER_HOST=4 launch/mpirun.sh 8 PROGRAM [ARGUMENT...]
# HOSTFILE has lines "name slots=4"; the program and its files lie under the same path on all hosts.
set -euo pipefail

if (($# < 2)); then
  sed -n '2,5s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2
  exit 2
fi
ranks="$1"
shift
# shellcheck source-path=SCRIPTDIR source=mpi_environment.sh
source "$(dirname "${BASH_SOURCE[0]}")/mpi_environment.sh"
mpi_environment "${RANKS_PER_HOST:-$ranks}"

options=(-n "$ranks")
if [[ -n ${HOSTFILE:-} ]]; then
  options+=(--hostfile "$HOSTFILE" -x OMP_NUM_THREADS -x LD_LIBRARY_PATH -x PATH)
fi
# Unbound where ranks share cores: Open MPI would put them all on the first ones.
options+=(--bind-to none)
exec mpirun "${options[@]}" "$@"
