# shellcheck shell=bash
# Sourced by the launchers: installs what packages.txt lists and the machine lacks.

# install_packages SECTION...: as root through apt-get; otherwise says which are missing, and fails.
# SHARDLOSS_SKIP_PACKAGES=1 takes the machine as it is (compilers and libraries of another kind).
install_packages() {
  if [[ ${SHARDLOSS_SKIP_PACKAGES:-0} == 1 ]]; then return 0; fi
  local list section wanted missing=() package
  list="$(dirname "${BASH_SOURCE[0]}")/packages.txt"
  for section in "$@"; do
    wanted="$(awk -v section="$section" '
      /^# section:/ { inside = ($3 == section); next }
      inside && NF && !/^#/ { print $1 }' "$list")"
    for package in $wanted; do
      if ! is_installed "$package"; then missing+=("$package"); fi
    done
  done
  if ((${#missing[@]} == 0)); then return 0; fi

  if ! command -v apt-get > /dev/null; then
    echo "missing, under their Debian names: ${missing[*]}" >&2
    echo "apt-get is not here: install them by other means, then set SHARDLOSS_SKIP_PACKAGES=1" >&2
    return 1
  fi
  if [[ $(id -u) != 0 ]]; then
    echo "missing Debian packages: ${missing[*]}" >&2
    echo "install them with: sudo apt-get install -y ${missing[*]}" >&2
    return 1
  fi
  echo "installing ${missing[*]}"
  apt-get update -qq &&
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}"
}

is_installed() {
  [[ "$(dpkg-query -W -f '${db:Status-Abbrev}' "$1" 2> /dev/null)" == ii* ]]
}
