# Works on a run directory on the node. The caller (run.go) sets $action (start, status,
# follow or stop), $dir, and the variables of the action in front of this text.
# shellcheck disable=SC2154 # the variables above
unset CDPATH
umask 077

# fail MESSAGE: reports an error and ends. The caller tells it by the F.
fail() { echo "F $*"; exit 0; }

# short_sleep: 0.2 s, or 1 s where sleep takes whole seconds only, as in POSIX.
short_sleep() { sleep 0.2 2>/dev/null || sleep 1; }

# group_alive: whether processes of the run's process group exist. A pid file of an
# earlier boot says nothing: the number may be another process's by now.
group_alive() {
    [ -s pid ] || return 1
    read -r group boot <pid
    [ "$boot" = "$(cat /proc/sys/kernel/random/boot_id 2>/dev/null)" ] && kill -0 "-$group" 2>/dev/null
}

# read_state: sets $state, $code and $size. The size is read after the state, so that it
# is final when the run has ended.
read_state() {
    code=0
    if [ ! -e lock ]; then
        state=absent
    elif ! flock -n -s lock true; then
        state=running
    elif [ ! -d started ]; then
        state=absent
    elif [ -s exit ]; then
        state=exited
        read -r code <"exit"
    elif group_alive; then
        state=running
    else
        state=lost
    fi
    size=0
    if [ -f output ]; then
        size=$(($(wc -c <output)))
    fi
}

# report: prints the status, "S STATE CODE SIZE".
report() {
    read_state
    echo "S $state $code $size"
}

# unit_name: the name of the run's systemd unit, the same for every path that leads to
# this directory.
unit_name() {
    echo "ebb-$(basename "$PWD" | tr -c 'A-Za-z0-9\n' -)-$(pwd -P | cksum | cut -d ' ' -f 1)" | tail -c 200
}

# write_file NAME MODE CONTENT: writes a file by renaming a temporary one.
write_file() {
    tmp=$1.new.$$
    if ! printf %s "$3" >"$tmp" || ! chmod "$2" "$tmp" || ! mv -f "$tmp" "$1"; then
        fail "cannot write $PWD/$1"
    fi
}

# launch: starts the wrapper detached from this session, as a systemd unit if there is
# systemd.
launch() {
    if [ -d /run/systemd/system ] && command -v systemd-run >/dev/null 2>&1 &&
        systemd-run --quiet --no-ask-password --collect --unit="$(unit_name)" --description="Ebb run $PWD" \
            --property=KillMode=process --setenv=PATH="$PATH" --setenv=HOME="${HOME:-/}" \
            /bin/sh "$PWD/wrapper" "$PWD" </dev/null >/dev/null 2>&1; then
        return 0
    fi
    # Should both have been started: only one of them can make the directory "started".
    setsid sh ./wrapper "$PWD" </dev/null >/dev/null 2>&1 &
}

# remove_old_runs: removes runs that ended more than 30 days ago and the files .done-*
# that scripts leave beside them. No operation takes that long.
remove_old_runs() {
    for old in ../*/; do
        if [ -d "$old/started" ] && [ -n "$(find "$old/exit" -size +0 -mtime +30 2>/dev/null)" ]; then
            flock -n "$old/lock" rm -rf "$old"
        fi
    done
    find .. -maxdepth 1 -type f -name '.done-*' -mtime +30 -exec rm -f {} +
}

do_start() {
    command -v flock >/dev/null 2>&1 || fail "flock (util-linux) is not on this node"
    if ! mkdir -p "$dir" || ! cd "$dir" || ! chmod 700 .; then
        fail "cannot make the run directory $dir"
    fi
    if [ ! -d started ]; then
        write_file script 700 "$script"
        write_file env 600 "$env"
        write_file launch 700 "$launch"
        write_file wrapper 700 "$wrapper"
        remove_old_runs
        launch
        tries=0
        until [ -d started ]; do
            [ "$tries" -lt 50 ] || fail "the run in $PWD did not start within 10 s"
            tries=$((tries + 1))
            short_sleep
        done
    fi
    report
}

# do_follow: prints frames: "D N" and N bytes of output, "K" as a keepalive every 4 s
# (writing it ends this loop after a lost connection), and "S ..." at the end.
do_follow() {
    quiet=0
    while :; do
        read_state
        count=$((size - offset))
        if [ "$count" -gt 0 ]; then
            [ "$count" -le "$chunk" ] || count=$chunk
            echo "D $count" && tail -c "+$((offset + 1))" output | head -c "$count" || exit 1
            offset=$((offset + count))
            quiet=0
        elif [ "$state" != running ]; then
            echo "S $state $code $size"
            return
        else
            short_sleep
            quiet=$((quiet + 1))
            if [ "$quiet" -ge 20 ]; then
                echo K || exit 1
                quiet=0
            fi
        fi
    done
}

# terminate: sends SIGTERM to the wrapper, which passes it on to its process group, or to
# the group when the wrapper is dead.
terminate() {
    [ -s pid ] || return 0
    read -r group boot <pid
    kill -TERM "$group" 2>/dev/null || kill -TERM "-$group" 2>/dev/null
}

# kill_run: sends SIGKILL to the process group and, under systemd, to the whole unit.
kill_run() {
    if [ -d /run/systemd/system ] && command -v systemctl >/dev/null 2>&1; then
        systemctl kill --signal=KILL "$(unit_name).service" >/dev/null 2>&1
    fi
    [ -s pid ] && read -r group boot <pid && kill -KILL "-$group" 2>/dev/null
}

# wait_ended SECONDS: waits until the run has ended and its process group is gone; fails
# after that time.
wait_ended() {
    deadline=$(($(date +%s) + $1))
    while :; do
        read_state
        if [ "$state" != running ] && ! group_alive; then
            return 0
        fi
        [ "$(date +%s)" -lt "$deadline" ] || return 1
        short_sleep
    done
}

do_stop() {
    read_state
    if [ "$state" = running ]; then
        terminate
        if ! wait_ended "$grace"; then
            kill_run
            wait_ended 30 || fail "the run in $PWD is still there after SIGKILL"
        fi
        # The wrapper was killed, too, before it could write the exit code.
        if [ ! -s exit ]; then
            write_file exit 600 "137
"
        fi
    fi
    report
}

case $action in
start) do_start ;;
*)
    if ! cd "$dir" 2>/dev/null; then
        [ ! -e "$dir" ] || fail "cannot enter the run directory $dir"
        echo "S absent 0 0"
        exit 0
    fi
    case $action in
    status) report ;;
    follow) do_follow ;;
    stop) do_stop ;;
    esac
    ;;
esac
