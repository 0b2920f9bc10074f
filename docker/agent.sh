#!/usr/bin/env bash
# A worker of a job on several containers: `tfdist agent`, which offers this container to the job's launcher and starts
# the ranks here. It dials the launcher; nothing listens here.
#
#   SLOTS              ranks on this worker (1)
#   LAUNCHER_TIMEOUT   seconds to wait for a launcher (600)
#   STAY               if not empty, this container stays when the job has ended, for its files; else it ends after the
#                      launcher
#
# /run/tfdist/launcher is a folder in memory, in which only launcher.sh can write:
#
#   job.key   the key of this start of the launcher, which keeps it locked as long as it lives
#   address   where that launcher listens
#
# If containers share no memory, as in Kubernetes, both are passed instead:
#
#   JOB_KEY    file with the key
#   LAUNCHER   host and port where the launcher listens
#
# The exit status is that of the job. SIGTERM ends the ranks here, and with them the
# job; in an elastic job they leave at their next commit, and the others continue.
set -euo pipefail

shared=/run/tfdist/launcher
slots=${SLOTS:-1}
limit=${LAUNCHER_TIMEOUT:-600}
# How long a launcher that has ended the job may take to end itself.
LAST_SECONDS=30
name=()
# Signals that came.
stops=0

fail() {
  echo "tfdist-agent: $*" >&2
  exit 1
}

# Opens the key as descriptor 9. One that nobody keeps locked is of a launcher that is gone.
is_there() {
  [[ -s $shared/job.key ]] && { exec 9< "$shared/job.key"; } 2> /dev/null && ! flock --nonblock --shared 9
}

# The name of this container for others, by which a summary should call it: its host name is a random one.
known_as() {
  local address
  address=$(getent ahostsv4 "$HOSTNAME" | awk '{ print $1; exit }')
  getent --service=hosts:dns hosts "$address" | awk '{ sub(/[.].*/, "", $2); print $2; exit }'
}

find_launcher() {
  local known
  until is_there; do
    ((stops == 0)) || exit 143
    ((SECONDS < limit)) || fail "no launcher within $limit s (LAUNCHER_TIMEOUT); start it, then this worker again"
    sleep 0.2
  done
  JOB_KEY=$shared/job.key
  LAUNCHER=$(< "$shared/address")
  known=$(known_as) || known=
  [[ -z $known ]] || name=(--name "$known")
}

# The agent gets it too, if there is one already.
trap 'stops=$((stops + 1)); [[ -z ${agent:-} ]] || kill -TERM "$agent" 2> /dev/null || true' TERM

for given in SLOTS LAUNCHER_TIMEOUT; do
  [[ ${!given:-1} =~ ^[1-9][0-9]*$ ]] || fail "$given is '${!given}'; expected a number, 1 or more"
done
: > "${TMPDIR:-/tmp}/tfdist-agent" # the sign of health: from here on it waits
if [[ -z ${JOB_KEY:-}${LAUNCHER:-} ]]; then
  find_launcher
else
  [[ -s ${JOB_KEY:-} ]] || fail "JOB_KEY is '${JOB_KEY:-}', which is not a key file; set both JOB_KEY and LAUNCHER"
  [[ -n ${LAUNCHER:-} ]] || fail "LAUNCHER is not set; set both JOB_KEY and LAUNCHER, such as train-launcher:4000"
fi

tfdist agent --launcher "$LAUNCHER" --key-file "$JOB_KEY" --slots "$slots" --wait "$limit" "${name[@]}" 9<&- &
agent=$!
((stops == 0)) || kill -TERM "$agent" 2> /dev/null || true
# A signal interrupts this waiting, and the agent ends a little later.
before=-1
while ((stops != before)); do
  before=$stops
  status=0
  wait "$agent" || status=$?
done
if [[ $stops == 0 && -n ${STAY:-} ]]; then
  echo "tfdist-agent: the agent has ended with status $status; this container stays until it is deleted" >&2
  exec sleep infinity
fi
# With `up --exit-code-from launcher` the first container that ends has the launcher ended.
if [[ $stops == 0 && -e /proc/self/fd/9 ]]; then flock --shared --timeout "$LAST_SECONDS" 9 || true; fi
exit "$status"
