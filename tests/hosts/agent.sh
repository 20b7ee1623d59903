#!/bin/sh
# mpirun calls this instead of ssh: agent.sh <host> <command>. Runs the command on a host of
# hosts.py; the file with its name contains the PID of its first process.
host="$1"
shift
exec nsenter --target "$(cat "$KOLO_TEST_HOSTS/$host")" --net --uts --ipc --mount --pid --time -- \
  sh -c "$*"
