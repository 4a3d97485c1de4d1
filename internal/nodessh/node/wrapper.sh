#!/bin/sh
# Runs one script at most once and keeps its end. Launched detached by run.sh with
# the run directory as its only argument.
#   lock     held by this process for as long as the run lasts
#   started  made with mkdir: whoever makes it runs the script, once for all time
#   pid      process group of the run, and the boot it belongs to
#   output   what the script said
#   exit     its exit code
cd "$1" || exit 1
exec 9>>lock
# Only a second copy, or someone who looks at the state for a moment, holds the lock.
until flock -n 9; do
    [ -d started ] && exit 0
    sleep 0.1 2>/dev/null || sleep 1
done
# A stop reaches this process, which passes it on to the whole group; the code that
# the script then ends with is kept like any other.
stopped=
trap 'stopped=yes; trap "" TERM; kill -TERM "-$$"' TERM
mkdir started 2>/dev/null || exit 0
echo "$$ $(cat /proc/sys/kernel/random/boot_id 2>/dev/null)" >pid

# One script at a time on a machine, whichever operation it belongs to: the script
# of an operation that was terminated runs on, and no other may run beside it.
exec 8>>../lock
said=
until flock -n 8; do
    [ -n "$stopped" ] && break
    [ -n "$said" ] || echo "ebb: waiting for another run on this machine to end" >>output
    said=yes
    sleep 0.2 2>/dev/null || sleep 1
done

code=143
if [ -z "$stopped" ]; then
    sh ./launch </dev/null >>output 2>&1 8>&- 9>&- &
    child=$!
    wait "$child"
    code=$?
    # The trap interrupts wait, which then says 143 and has not seen the child's end;
    # 127 says that it had.
    if [ -n "$stopped" ]; then
        wait "$child"
        again=$?
        [ "$again" = 127 ] || code=$again
    fi
fi
echo "$code" >exit.new && mv exit.new exit
