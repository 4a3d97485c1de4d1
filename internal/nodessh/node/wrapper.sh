#!/bin/sh
# Runs a script at most once and records its exit code. Started detached by run.sh with
# the run directory as its only argument. The files there:
#   lock     locked by this process for as long as the run lasts
#   started  a directory: the process that creates it runs the script, and no other ever
#   pid      process group of the run, and the boot it belongs to
#   output   stdout and stderr of the script
#   exit     its exit code
cd "$1" || exit 1
exec 9>>lock
# Otherwise it is held only by a second wrapper, or for a moment by a read of the state.
until flock -n 9; do
    [ -d started ] && exit 0
    sleep 0.1 2>/dev/null || sleep 1
done
# SIGTERM is sent to this process, which passes it on to its process group. The exit code
# of the script is recorded in this case, too.
stopped=
trap 'stopped=yes; trap "" TERM; kill -TERM "-$$"' TERM
mkdir started 2>/dev/null || exit 0
echo "$$ $(cat /proc/sys/kernel/random/boot_id 2>/dev/null)" >pid

# One script at a time on a machine, whatever operation it belongs to: the script of an
# operation that was terminated goes on, and no other may run beside it.
exec 8>>../lock
announced=
until flock -n 8; do
    [ -n "$stopped" ] && break
    [ -n "$announced" ] || echo "ebb: waiting for another run on this machine to end" >>output
    announced=yes
    sleep 0.2 2>/dev/null || sleep 1
done

code=143
if [ -z "$stopped" ]; then
    sh ./launch </dev/null >>output 2>&1 8>&- 9>&- &
    child=$!
    wait "$child"
    code=$?
    # The trap interrupts wait, which then returns 143 while the child still runs. The
    # second wait returns the child's code, or 127 when the first one had returned it.
    if [ -n "$stopped" ]; then
        wait "$child"
        status=$?
        [ "$status" = 127 ] || code=$status
    fi
fi
echo "$code" >exit.new && mv exit.new exit
