#!/bin/sh
# What mpirun calls instead of ssh: agent.sh <host> <command>. Runs the command on a host of
# hosts.py, whose first process is in the file of its name.
host="$1"
shift
exec nsenter --target "$(cat "$KOLO_TEST_HOSTS/$host")" --net --uts --ipc --mount --pid -- \
  sh -c "$*"
