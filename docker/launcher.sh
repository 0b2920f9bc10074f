#!/usr/bin/env bash
# The launcher of a job on several containers: finds the workers and runs a job on them. The workers are reached by ssh
# (worker.sh), or their agents come to a port here (agent.sh).
# Usage: launcher.sh COMMAND [ARGUMENTS...]
#        launcher.sh --workers, while a job runs by ssh: prints the workers that answer now, as name:slots
#
#   WORKER_SERVICE    name that resolves to the addresses of the workers (worker)
#   WORKERS           minimum number of workers to wait for (1)
#   SLOTS             ranks on each worker (1)
#   HOSTFILE          file with a line `name slots=2` per worker, instead of these three; requires the two keys
#   WORKER_TIMEOUT    seconds within which the workers must be ready (60)
#   ELASTIC_OPTIONS   tfdistrun options for an elastic job, such as --min-np 1: workers may join and leave while it runs
#   LAUNCH_OPTIONS    more options for tfdistrun
#
# For agents:
#
#   AGENTS_PORT       port to listen on
#   JOB_KEY           file with the key that the agents have too; then WORKERS is the number that it starts with
#
# Without JOB_KEY a new key is made at every start, in a folder in memory that only this container and the workers share.
# It stays locked as long as the launcher lives, so that no worker takes one that an earlier launcher has left.
#
# For ssh, where AGENTS_PORT is empty:
#
#   LAUNCHER_KEY      file with the private key that the workers accept
#   HOST_KEY          file with the public host key of all workers
#
# Without the two keys, a new pair is generated at every start. The private key stays in this container's memory; the
# public host keys of the workers come through a volume that only they and this container share, and are read again for
# each connection. In both cases no host key from the network is trusted.
set -euo pipefail
shopt -s inherit_errexit

service=${WORKER_SERVICE:-worker}
count=${WORKERS:-1}
slots=${SLOTS:-1}
limit=${WORKER_TIMEOUT:-60}
own=$HOME/.ssh
# What workers may read and only a launcher may write.
shared=/run/tfdist/launcher
# The public host keys of the workers: a folder, or one file.
told=${HOST_KEY:-/run/tfdist/workers}
# When each address last answered, one file per address.
heard=${TMPDIR:-/tmp}/tfdist-workers
# How long a worker that answered is not asked again, and how long one may take to answer.
ASK_SECONDS=4
ANSWER_SECONDS=3
self=$(readlink -f "${BASH_SOURCE[0]}")
hosts=()

fail() {
  echo "tfdist-launcher: $*" >&2
  exit 1
}

# number NAME VALUE WHAT: fails if a variable is not a number, 1 or more.
number() {
  [[ $2 =~ ^[1-9][0-9]*$ ]] || fail "$1 is '$2'; expected $3, 1 or more"
}

# until_ready WHAT COMMAND...: repeats the command until it succeeds or the time is up.
until_ready() {
  local what=$1
  shift
  until "$@"; do
    if ((SECONDS >= limit)); then
      fail "$what within $limit s (WORKER_TIMEOUT); check the logs of the workers"
    fi
    sleep 0.5
  done
}

take_keys() {
  local name
  for name in LAUNCHER_KEY HOST_KEY; do
    [[ -s ${!name:-} ]] || fail "$name is '${!name:-}', which is not a key file; set both LAUNCHER_KEY and HOST_KEY"
  done
  install -m 0400 "$LAUNCHER_KEY" "$own/id_ed25519"
}

make_keys() {
  ssh-keygen -q -t ed25519 -N '' -C launcher -f "$own/id_ed25519" <<< y > /dev/null
  cp "$own/id_ed25519.pub" "$shared/.key.pub"
  mv "$shared/.key.pub" "$shared/key.pub"
}

look_up() {
  mapfile -t addresses < <(getent ahostsv4 "$service" | awk '{ print $1 }' | sort -Vu)
  ((${#addresses[@]} >= count))
}

# The shortest form of the container's name that resolves to it: more helpful in a summary than an address. In
# Kubernetes it includes the name of the Service. Fails if none resolves to it.
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
  return 1
}

find_workers() {
  local lacking="no worker has" address name
  ((count == 1)) || lacking="fewer than $count workers have"
  until_ready "$lacking an address under the name '$service'" look_up
  for address in "${addresses[@]}"; do
    name=$(name_of "$address") || name=$address
    hosts+=("$name:$slots")
  done
}

# ask ADDRESS...: records the time for each address where a worker answers with a known host key.
ask() {
  local keys address kind key
  # A link in the folder may point anywhere: any worker may have created it.
  keys=$(find -H "$told" -maxdepth 1 -type f -exec cat {} +)
  while read -r address kind key; do
    address=${address#[}
    [[ $keys != *"$kind $key"* ]] || printf '%s\n' "$EPOCHSECONDS" > "$heard/${address%%]*}"
  done < <(ssh-keyscan -T "$ANSWER_SECONDS" -t ed25519 -p 2222 "$@" 2> /dev/null)
}

# Prints the current workers. A worker counts as long as the job tolerates its silence, and a little longer.
list_workers() {
  local address name unsure=()
  mkdir -p "$heard"
  addresses=()
  look_up || true
  for address in "${addresses[@]}"; do
    heard_within "$ASK_SECONDS" "$address" || unsure+=("$address")
  done
  ((${#unsure[@]} == 0)) || ask "${unsure[@]}"
  for address in "${addresses[@]}"; do
    # A worker whose name no longer resolves is gone.
    if heard_within "$lasts" "$address" && name=$(name_of "$address"); then
      printf '%s:%s\n' "$name" "$slots"
    fi
  done | sort -V
}

# Fails if a worker answered recently and must still be up: a resolver may fail for a moment.
refuse_silence() {
  local at
  for at in "$heard"/*; do
    ! heard_within "$lasts" "${at##*/}" ||
      fail "'$service' resolves to no worker with a name of its own, though ${at##*/} answered within the last $lasts s"
  done
}

# heard_within SECONDS ADDRESS
heard_within() {
  local at=0
  [[ ! -s $heard/$2 ]] || read -r at < "$heard/$2"
  ((EPOCHSECONDS - at <= $1))
}

enough_answer() {
  mapfile -t hosts < <(list_workers)
  ((${#hosts[@]} >= count))
}

read_hostfile() {
  local name ranks rest
  [[ -z ${ELASTIC_OPTIONS:-} ]] || fail "HOSTFILE has a fixed set of workers; ELASTIC_OPTIONS requires WORKER_SERVICE"
  [[ -r $HOSTFILE ]] || fail "HOSTFILE is '$HOSTFILE', which cannot be read"
  [[ -n ${HOST_KEY:-} ]] || fail "HOSTFILE requires LAUNCHER_KEY and HOST_KEY"
  while read -r name ranks rest; do
    [[ -n $name && $name != \#* ]] || continue
    ranks=${ranks:-slots=1}
    [[ $ranks =~ ^slots=[1-9][0-9]*$ && -z $rest ]] ||
      fail "$HOSTFILE: cannot parse '$name $ranks${rest:+ $rest}'; expected lines like 'name slots=2'"
    hosts+=("$name:${ranks#slots=}")
  done < "$HOSTFILE"
  ((${#hosts[@]})) || fail "$HOSTFILE: no workers found; expected lines like 'name slots=2'"
}

# share_key ADDRESS: makes a key for agents, and shows it to them with the address at which they are to come. Descriptor 9
# keeps it locked, also when this process is tfdistrun.
share_key() {
  rm -f "$shared"/.job.key.*
  exec 9> "$(umask 077 && mktemp "$shared/.job.key.XXXXXX")"
  flock 9
  python -c 'import secrets; print(secrets.token_hex(32))' >&9
  printf '%s\n' "$1" > "$shared/address"
  mv "$(readlink /proc/self/fd/9)" "$shared/job.key"
}

# Runs the job on workers whose agents come.
with_agents() {
  local key=${JOB_KEY:-$shared/job.key} here listed elastic options ranks
  here=$(getent ahostsv4 "$HOSTNAME" | awk '{ print $1; exit }') || here=
  [[ -n $here ]] || fail "the name of this container, '$HOSTNAME', has no address; its network must give it one"
  here+=:$AGENTS_PORT
  if [[ -n ${JOB_KEY:-} ]]; then
    [[ -s $JOB_KEY ]] || fail "JOB_KEY is '$JOB_KEY', which is not a key file"
    listed="$count worker$( ((count == 1)) || echo s)"
  else
    # All workers are here, as each is healthy before compose starts a launcher; so their addresses count them, also
    # those that --scale has added.
    find_workers
    count=${#hosts[@]}
    listed=$(in_order)
    share_key "$here"
  fi
  ranks=$((count * slots))
  echo "tfdist-launcher: $ranks ranks on $listed" >&2
  read -r -d "" -a elastic <<< "${ELASTIC_OPTIONS:-}" || true
  read -r -d "" -a options <<< "${LAUNCH_OPTIONS:-}" || true
  exec tfdistrun -np "$ranks" --agents "$count" --listen "$here" --key-file "$key" --start-timeout "$limit" \
    "${elastic[@]}" "${options[@]}" "$@"
}

# The hosts as -H takes them, worker-10 after worker-9.
in_order() {
  local sorted
  mapfile -t sorted < <(printf '%s\n' "${hosts[@]}" | sort -V)
  (IFS=, && echo "${sorted[*]}")
}

# Fractions of a second do not matter here.
lasts=${TFDIST_HOST_TIMEOUT:-30}
lasts=$((${lasts%.*} + ASK_SECONDS + 1))
number SLOTS "$slots" "the number of ranks on each worker"
if [[ ${1:-} == --workers ]]; then
  listed=$(list_workers)
  if [[ -n $listed ]]; then printf '%s\n' "$listed"; else refuse_silence; fi
  exit
fi

[[ $# -gt 0 ]] || fail "no command; write it after the name, as in: tfdist-launcher python train.py"
[[ -r . && -x . ]] ||
  fail "user $(id -u) cannot read the folder of the script, $PWD (CODE in compose); make it readable: chmod -R a+rX FOLDER"
number WORKERS "$count" "the number of workers to wait for"
number WORKER_TIMEOUT "$limit" "a number of seconds"
[[ -z ${AGENTS_PORT:-} ]] || with_agents "$@"

if [[ -n ${LAUNCHER_KEY:-}${HOST_KEY:-} ]]; then take_keys; else make_keys; fi
cat > "$own/config" << CONFIG
Host *
  Port 2222
  IdentityFile $own/id_ed25519
  IdentitiesOnly yes
  UserKnownHostsFile none
  GlobalKnownHostsFile none
  KnownHostsCommand /usr/bin/find -H $told -maxdepth 1 -type f -exec /usr/bin/sed "s/^/[*]:2222 /" {} +
  StrictHostKeyChecking yes
  UpdateHostKeys no
  ConnectTimeout 5
CONFIG

if [[ -n ${HOSTFILE:-} ]]; then
  read_hostfile
elif [[ -n ${ELASTIC_OPTIONS:-} ]]; then
  until_ready "fewer than $count workers answer under the name '$service'" enough_answer
else
  find_workers
fi
ranks=0
for host in "${hosts[@]}"; do
  until_ready "${host%:*} cannot be reached by ssh" ssh -o BatchMode=yes -o LogLevel=ERROR "${host%:*}" true
  ((ranks += ${host##*:}))
done

read -r -d "" -a elastic <<< "${ELASTIC_OPTIONS:-}" || true
read -r -d "" -a options <<< "${LAUNCH_OPTIONS:-}" || true
listed=$(in_order)
echo "tfdist-launcher: $ranks ranks on $listed" >&2
where=(-H "$listed")
((${#elastic[@]} == 0)) || where=(--host-discovery-script "$self --workers" "${elastic[@]}")
exec tfdistrun -np "$ranks" "${where[@]}" "${options[@]}" "$@"
