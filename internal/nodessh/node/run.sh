# Everything Ebb does with a run directory, on the node. The caller sets $action
# and $dir, and what the action needs, in front of this text.
# shellcheck disable=SC2154 # those
unset CDPATH
umask 077
PATH=$PATH:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin

fail() { echo "F $*"; exit 0; }

# A short sleep where sleep takes fractions, as everywhere but in POSIX.
nap() { sleep 0.2 2>/dev/null || sleep 1; }

# group_alive: processes of the run are left. After a reboot the number means
# nothing any more.
group_alive() {
    [ -s pid ] || return 1
    read -r group boot <pid
    [ "$boot" = "$(cat /proc/sys/kernel/random/boot_id 2>/dev/null)" ] && kill -0 "-$group" 2>/dev/null
}

# look: sets $state, $code and $size. The state comes first: once a run has ended
# its output grows no more, so a size read after that misses nothing.
look() {
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

report() {
    look
    echo "S $state $code $size"
}

# unit_name: the same for every look at this directory, however its path was given.
unit_name() {
    echo "ebb-$(basename "$PWD" | tr -c 'A-Za-z0-9\n' -)-$(pwd -P | cksum | cut -d ' ' -f 1)" | tail -c 200
}

# put NAME MODE CONTENT: never a half-written file under its name.
put() {
    fresh=$1.new.$$
    if ! printf %s "$3" >"$fresh" || ! chmod "$2" "$fresh" || ! mv -f "$fresh" "$1"; then
        fail "cannot write $PWD/$1"
    fi
}

launch() {
    if [ -d /run/systemd/system ] && command -v systemd-run >/dev/null 2>&1 &&
        systemd-run --quiet --no-ask-password --collect --unit="$(unit_name)" --description="Ebb run $PWD" \
            --property=KillMode=process --setenv=PATH="$PATH" --setenv=HOME="${HOME:-/}" \
            /bin/sh "$PWD/wrapper" "$PWD" </dev/null >/dev/null 2>&1; then
        return 0
    fi
    # Launching both ways is harmless: only one of them makes the started mark.
    setsid sh ./wrapper "$PWD" </dev/null >/dev/null 2>&1 &
}

# prune: runs that ended more than 30 days ago, and the notes that scripts left
# beside them, are of no use to anybody. No operation lives that long.
prune() {
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
        put script 700 "$script"
        put env 600 "$env"
        put launch 700 "$launch"
        put wrapper 700 "$wrapper"
        prune
        launch
        tries=0
        until [ -d started ]; do
            [ "$tries" -lt 50 ] || fail "the run in $PWD did not start within 10 s"
            tries=$((tries + 1))
            nap
        done
    fi
    report
}

# do_follow: frames on standard output: "D <n>" and n bytes of output, "K" as a sign
# of life (and so that a cut connection ends this loop), "S ..." at the end.
do_follow() {
    quiet=0
    while :; do
        look
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
            nap
            quiet=$((quiet + 1))
            if [ "$quiet" -ge 20 ]; then
                echo K || exit 1
                quiet=0
            fi
        fi
    done
}

# terminate: asks the wrapper, which passes it on to the group; if it is dead, the
# group itself.
terminate() {
    [ -s pid ] || return 0
    read -r group boot <pid
    kill -TERM "$group" 2>/dev/null || kill -TERM "-$group" 2>/dev/null
}

# kill_all: the process group and, under systemd, also what has left it.
kill_all() {
    if [ -d /run/systemd/system ] && command -v systemctl >/dev/null 2>&1; then
        systemctl kill --signal=KILL "$(unit_name).service" >/dev/null 2>&1
    fi
    [ -s pid ] && read -r group boot <pid && kill -KILL "-$group" 2>/dev/null
}

# ended_within SECONDS: the run and its process group are gone.
ended_within() {
    until_time=$(($(date +%s) + $1))
    while :; do
        look
        if [ "$state" != running ] && ! group_alive; then
            return 0
        fi
        [ "$(date +%s)" -lt "$until_time" ] || return 1
        nap
    done
}

do_stop() {
    look
    if [ "$state" = running ]; then
        terminate
        if ! ended_within "$grace"; then
            kill_all
            ended_within 30 || fail "the run in $PWD is still there after SIGKILL"
        fi
        # Killed with its wrapper: nobody else writes how it ended.
        if [ ! -s exit ]; then
            put exit 600 "137
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
