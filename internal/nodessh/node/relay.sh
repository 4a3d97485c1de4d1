# Connects stdin and stdout with a TCP port, by what this node has: bash, socat or nc.
# The caller (relay.go) sets $host, $port and $ready in front of this text: $ready is
# printed on a line of its own, and what follows it comes from the port. Nothing is read
# from stdin before that line. It ends when either side closes.
# shellcheck disable=SC2154 # the variables above
tool=none
has() { command -v "$1" >/dev/null 2>&1 && tool=$1; }

if has bash; then
    # It ends with 9 where bash was built without network redirections, or the port refuses.
    # shellcheck disable=SC2016 # for bash to expand
    bash -c '
        { exec 3<>"/dev/tcp/$1/$2"; } || exit 9
        exec 4<&0
        echo "$3"
        cat <&3 & down=$!
        cat <&4 >&3 & up=$!
        wait -n
        kill "$down" "$up" 2>/dev/null
        exit 0
    ' bash "$host" "$port" "$ready" && exit 0
fi
if has socat; then
    case $host in *:*) host="[$host]" ;; esac
    echo "$ready"
    exec socat - "TCP:$host:$port"
fi
if has nc; then
    echo "$ready"
    # Where it can be told to end with stdin, it has to be.
    case $(nc -h 2>&1 </dev/null) in
    *-N*) exec nc -N "$host" "$port" ;;
    *) exec nc "$host" "$port" ;;
    esac
fi
[ "$tool" != none ] || echo "neither bash nor socat nor nc is on this node" >&2
exit 1
