#!/bin/sh
# Switches a machine on: joins its cgroups (the arguments), then starts init.sh in
# its network and in namespaces of its own. LAB_NETNS and LAB_INIT say where.
set -eu
for group in "$@"; do
    echo $$ >"$group/cgroup.procs"
done
exec nsenter --net="/run/netns/$LAB_NETNS" \
    unshare --mount --propagation private --uts --ipc --pid --cgroup --fork --kill-child=SIGKILL \
    sh "$LAB_INIT"
