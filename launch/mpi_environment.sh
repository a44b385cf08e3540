# shellcheck shell=bash
# Sourced by the launchers: lets Open MPI run as root, in containers, and with more ranks than cores.

# mpi_environment RANKS: exports what mpirun and RANKS ranks on this host need.
mpi_environment() {
  local ranks="$1" cores
  cores="$(nproc)"
  if [[ $(id -u) == 0 ]]; then
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
  fi
  # Ranks that outnumber the cores yield while they wait; Open MPI 4 and 5 name that differently.
  export OMPI_MCA_rmaps_base_oversubscribe=1
  export PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe
  if ((ranks > cores)); then export OMPI_MCA_mpi_yield_when_idle=1; fi
  # Containers often forbid the system calls by which one rank reads another's memory.
  export OMPI_MCA_btl_vader_single_copy_mechanism=none
  export OMPI_MCA_smsc=^cma
  # The ranks of a host share its cores.
  export OMP_NUM_THREADS="${OMP_NUM_THREADS:-$((cores / ranks > 0 ? cores / ranks : 1))}"
}
