#!/usr/bin/env bash
# The launcher of a job over several containers: finds the workers, checks that each can be reached, and runs a job over
# them. Usage: launcher.sh COMMAND [ARGUMENTS...]
#
#   WORKER_SERVICE    name whose addresses are those of the workers (worker)
#   WORKERS           how many of them to wait for, at least (1)
#   SLOTS             ranks on each worker (1)
#   HOSTFILE          file with a line `name slots=2` for each worker, in place of these three; wants the two keys
#   WORKER_TIMEOUT    seconds in which the workers must be ready (60)
#   LAUNCH_OPTIONS    more options for tfdistrun
#   LAUNCHER_KEY      file with the private key that the workers let in
#   HOST_KEY          file with the public host key of all workers
#
# Without the two keys a new pair is made for every start. The private one stays in this container's memory; the public
# host keys of the workers come by a volume that only they and this container share. In both cases no host key is taken
# on trust from the network.
set -euo pipefail

service=${WORKER_SERVICE:-worker}
count=${WORKERS:-1}
slots=${SLOTS:-1}
limit=${WORKER_TIMEOUT:-60}
own=$HOME/.ssh
workers=/run/tfdist/workers
hosts=()

fail() {
  echo "tfdist-launcher: $*" >&2
  exit 1
}

# number NAME VALUE WHAT: ends where a variable is not a number of 1 or more.
number() {
  [[ $2 =~ ^[1-9][0-9]*$ ]] || fail "$1 is '$2'; expected $3, 1 or more"
}

# until_ready WHAT COMMAND...: repeats the command until it succeeds or the time is over.
until_ready() {
  local what=$1
  shift
  until "$@"; do
    if ((SECONDS >= limit)); then
      fail "$what within $limit s (WORKER_TIMEOUT); see what the workers say"
    fi
    sleep 0.5
  done
}

take_keys() {
  local name
  for name in LAUNCHER_KEY HOST_KEY; do
    [[ -s ${!name:-} ]] || fail "$name is '${!name:-}', which is no file with a key; LAUNCHER_KEY and HOST_KEY go together"
  done
  install -m 0400 "$LAUNCHER_KEY" "$own/id_ed25519"
}

make_keys() {
  ssh-keygen -q -t ed25519 -N '' -C launcher -f "$own/id_ed25519" <<< y > /dev/null
  cp "$own/id_ed25519.pub" /run/tfdist/launcher/.key.pub
  mv /run/tfdist/launcher/.key.pub /run/tfdist/launcher/key.pub
}

# trust FILE NAME...: the worker of these names has the host key in the file.
trust() {
  local kind key names
  read -r kind key _ < "$1"
  shift
  names=$(printf ',[%s]:2222' "$@")
  printf '%s %s %s\n' "${names#,}" "$kind" "$key" >> "$own/known_hosts"
}

look_up() {
  mapfile -t addresses < <(getent ahostsv4 "$service" | awk '{ print $1 }' | sort -Vu)
  ((${#addresses[@]} >= count))
}

# The shortest form of the container's name that leads to it: it says more in a summary than an address. In Kubernetes that
# has the name of the Service in it.
name_of() {
  local labels name="" label
  IFS=. read -ra labels < <(getent hosts "$1" | awk '{ print $2; exit }')
  for label in "${labels[@]}"; do
    name+=${name:+.}$label
    if [[ $'\n'$(getent ahostsv4 "$name") == *$'\n'"$1 "* ]]; then
      printf '%s\n' "$name"
      return
    fi
  done
  printf '%s\n' "$1"
}

find_workers() {
  local lacking="no worker has" address name
  ((count == 1)) || lacking="fewer than $count workers have"
  until_ready "$lacking an address as '$service'" look_up
  for address in "${addresses[@]}"; do
    name=$(name_of "$address")
    if [[ -n ${HOST_KEY:-} ]]; then
      trust "$HOST_KEY" "$name" "$address"
    else
      until_ready "the worker at $address has not told its host key" test -s "$workers/$address"
      trust "$workers/$address" "$name" "$address"
    fi
    hosts+=("$name:$slots")
  done
}

read_hostfile() {
  local name ranks rest
  [[ -r $HOSTFILE ]] || fail "HOSTFILE is '$HOSTFILE', which cannot be read"
  [[ -n ${HOST_KEY:-} ]] || fail "HOSTFILE wants LAUNCHER_KEY and HOST_KEY, too"
  while read -r name ranks rest; do
    [[ -n $name && $name != \#* ]] || continue
    ranks=${ranks:-slots=1}
    [[ $ranks =~ ^slots=[1-9][0-9]*$ && -z $rest ]] ||
      fail "$HOSTFILE: '$name $ranks${rest:+ $rest}' is not understood; expected lines like 'name slots=2'"
    trust "$HOST_KEY" "$name"
    hosts+=("$name:${ranks#slots=}")
  done < "$HOSTFILE"
  ((${#hosts[@]})) || fail "$HOSTFILE: no worker in it; expected lines like 'name slots=2'"
}

[[ $# -gt 0 ]] || fail "no command; write it after the name, as in: tfdist-launcher python train.py"
number WORKERS "$count" "the number of workers to wait for"
number SLOTS "$slots" "the number of ranks on each worker"
number WORKER_TIMEOUT "$limit" "a number of seconds"

if [[ -n ${LAUNCHER_KEY:-}${HOST_KEY:-} ]]; then take_keys; else make_keys; fi
cat > "$own/config" << CONFIG
Host *
  Port 2222
  IdentityFile $own/id_ed25519
  IdentitiesOnly yes
  UserKnownHostsFile $own/known_hosts
  GlobalKnownHostsFile none
  StrictHostKeyChecking yes
  UpdateHostKeys no
  ConnectTimeout 5
CONFIG
: > "$own/known_hosts"

if [[ -n ${HOSTFILE:-} ]]; then read_hostfile; else find_workers; fi
ranks=0
for host in "${hosts[@]}"; do
  until_ready "${host%:*} cannot be reached by ssh" ssh -o BatchMode=yes -o LogLevel=ERROR "${host%:*}" true
  ((ranks += ${host##*:}))
done

read -ra options <<< "${LAUNCH_OPTIONS:-}"
mapfile -t hosts < <(printf '%s\n' "${hosts[@]}" | sort -V)
listed=$(IFS=,; echo "${hosts[*]}")
echo "tfdist-launcher: $ranks ranks on $listed" >&2
exec tfdistrun -np "$ranks" -H "$listed" "${options[@]}" "$@"
