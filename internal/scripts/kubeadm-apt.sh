#!/bin/sh
# kubeadm-apt: upgrade a kubeadm node from the Kubernetes community's apt
# repositories (pkgs.k8s.io or a mirror of the same shape), with held packages.
#
# Ebb runs it on the node, as root, with
#   EBB_PHASE            stage: fetch everything, change nothing that runs
#                        upgrade: upgrade this node, which is drained
#   EBB_ROLE             first-control-plane, control-plane or worker
#   EBB_TARGET_VERSION   for example 1.37.2
#   EBB_KUBEADM_FLAGS    of kubeadm upgrade apply or node, which this role runs
#   EBB_OPERATION        names the operation: within one, a finished step is not repeated
#   EBB_RUN_DIR          directory of this run; the notes on finished steps lie beside it
#   EBB_LOCK_WAIT        seconds to wait for another package manager, default 300
#   EBB_MIRRORS_DIR      containerd's registry mirrors, default /etc/containerd/certs.d
# Exit: 0 done, 75 try again later, anything else fails the node.
set -eu

: "${EBB_PHASE:?}" "${EBB_ROLE:?}" "${EBB_TARGET_VERSION:?}"
target=${EBB_TARGET_VERSION#v}
flags=${EBB_KUBEADM_FLAGS:-}
lock_wait=${EBB_LOCK_WAIT:-300}

export LC_ALL=C DEBIAN_FRONTEND=noninteractive APT_LISTCHANGES_FRONTEND=none UCF_FORCE_CONFFOLD=1
# needrestart would restart services of its own choice, containerd among them.
export NEEDRESTART_SUSPEND=1

say() { echo "ebb: $*"; }
die() { echo "ebb: error: $*" >&2; exit 1; }
retry() { echo "ebb: try again later: $*" >&2; exit 75; }

tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
trap 'exit 143' TERM
trap 'exit 130' INT

# --- versions: exact, except for build metadata ---------------------------------

# plain VERSION: without a leading v and without +metadata.
plain() { p=${1#v}; echo "${p%%+*}"; }

# deb_plain VERSION: the Kubernetes version of a Debian package version, that is
# without epoch, package revision and metadata; Debian writes 1.38.0~rc.1.
deb_plain() {
    p=${1#*:}
    p=${p%-*}
    p=${p%%+*}
    echo "$p" | sed 's/~/-/'
}

is_target() { [ "$(plain "$1")" = "$(plain "$target")" ]; }

minor_of() { echo "$1" | cut -d. -f2; }

# --- apt ------------------------------------------------------------------------

locked() { grep -Eq 'Could not get lock|Unable to acquire the dpkg frontend lock|Unable to lock (the administration )?directory|is another process using it' "$tmp/out"; }

unreachable() { grep -Eq 'Failed to fetch|Temporary failure resolving|Some index files failed to download' "$tmp/out"; }

untrusted() { grep -Eq 'signatures (were invalid|couldn.t be verified)|is not signed' "$tmp/out"; }

# reason: why apt-get has failed, in its own words and on one line.
reason() {
    grep -E '^(E: |W: (An error|GPG error|Failed to fetch)| [^ ]+ : (PreDepends|Depends|Breaks|Conflicts): )' "$tmp/out" |
        awk '!said[$0]++ { sub(/^ +/, ""); printf "%s%s", (NR > 1 ? "; " : ""), $0 }'
}

# apt ARGS: apt-get, its output shown and kept in $tmp/out. Waits for a lock that
# another process holds (DPkg::Lock::Timeout does not cover the package lists),
# then asks for a retry.
apt() {
    repaired=no
    began=$(date +%s)
    while :; do
        # The status goes through a file because sh has no pipefail. Without a
        # terminal of its own, dpkg does not count up to 100% in the output.
        { rc=0; apt-get -o "DPkg::Lock::Timeout=$lock_wait" -o Dpkg::Use-Pty=0 -o Dpkg::Options::=--force-confdef -o Dpkg::Options::=--force-confold "$@" </dev/null 2>&1 || rc=$?; echo "$rc" >"$tmp/rc"; } | tee "$tmp/out"
        rc=$(cat "$tmp/rc")
        if [ "$rc" = 0 ]; then
            return 0
        elif locked; then
            waited=$(($(date +%s) - began))
            [ "$waited" -lt "$lock_wait" ] || retry "another process has held the package manager's lock for $waited seconds"
            say "another process holds the package manager's lock, waiting"
            sleep 5
        elif [ "$repaired" = no ] && grep -q 'dpkg was interrupted' "$tmp/out"; then
            say "an earlier installation was interrupted, finishing it"
            repaired=yes
            dpkg --force-confdef --force-confold --configure -a </dev/null || die "dpkg --configure -a failed: repair the packages of this node by hand"
        elif [ "$1" != update ] && unreachable; then
            retry "apt-get $1 could not download"
        else
            return "$rc"
        fi
    done
}

# offered PACKAGE: sets $offered to the newest package revision of exactly the target.
offered() {
    offered=
    # madison lists the newest first: " kubeadm | 1.37.2-1.1 | https://... Packages"
    for candidate in $(apt-cache madison "$1" 2>/dev/null | awk -F'|' '{gsub(/ /, "", $2); print $2}'); do
        if is_target "$(deb_plain "$candidate")"; then
            offered=$candidate
            return 0
        fi
    done
    return 1
}

# apt_dir NAME DEFAULT: a directory of apt's configuration.
apt_dir() {
    dir=
    if command -v apt-config >/dev/null 2>&1; then
        eval "$(apt-config shell dir "$1/d")"
    fi
    dir=${dir:-$2}
    echo "${dir%/}"
}

# switch_repository: points Kubernetes' own entries to the target's minor. Other
# lines, other files and /etc/apt/sources.list are left alone.
switch_repository() {
    to=$(minor_of "$target")
    switched=no
    for list in "$(apt_dir Dir::Etc::sourceparts /etc/apt/sources.list.d)"/*; do
        case $list in *.list | *.sources) ;; *) continue ;; esac
        from=$(sed -n 's|^[^#]*/core:/stable:/v1\.\([0-9][0-9]*\)/deb.*|\1|p' "$list" | sort -n | tail -n 1)
        if [ -z "$from" ] || [ "$from" -ge "$to" ]; then
            continue
        fi
        # The copy keeps owner and mode; apt ignores its name.
        cp -p "$list" "$list.ebb-new"
        sed "/^[[:space:]]*#/!s|/core:/stable:/v1\.[0-9][0-9]*/deb|/core:/stable:/v1.$to/deb|g" "$list" >"$list.ebb-new"
        mv "$list.ebb-new" "$list"
        say "$list: repository switched from v1.$from to v1.$to"
        switched=yes
    done
    [ "$switched" = yes ]
}

not_offered() {
    if untrusted; then
        die "kubeadm $target is not offered, and a repository of this node is not trusted: renew its key (in /etc/apt/keyrings). apt-get says: $(reason)"
    fi
    if unreachable; then
        retry "kubeadm $target is not offered, and the package lists could not all be fetched"
    fi
    die "no apt repository of this node offers kubeadm $target: add the repository of v1.$(minor_of "$target") (https://pkgs.k8s.io/core:/stable:/v1.$(minor_of "$target")/deb/)"
}

# ensure_offered: sets $revision to the package revision of the target.
ensure_offered() {
    if [ "$EBB_PHASE" = upgrade ] && offered kubeadm; then
        revision=$offered
        return 0
    fi
    apt update || say "apt-get update failed, going on with the lists that are there"
    if ! offered kubeadm; then
        switch_repository || not_offered
        apt update || say "apt-get update failed, going on with the lists that are there"
        offered kubeadm || not_offered
    fi
    revision=$offered
}

# installed PACKAGE: prints the version of a completely installed package.
installed() {
    status=$(dpkg-query -W -f '${db:Status-Abbrev} ${Version}\n' "$1" 2>/dev/null) || return 1
    # "hi  1.36.3-1.1": wanted hold or install, status installed.
    case $status in ?i*) echo "${status##* }" ;; *) return 1 ;; esac
}

has() { installed "$1" >/dev/null; }

at_target() { v=$(installed "$1") && is_target "$(deb_plain "$v")"; }

# put PACKAGE...: exactly the target's revision of those not yet there, held afterwards.
put() {
    wanted=
    for package in "$@"; do
        if at_target "$package"; then
            say "$package $(installed "$package") is installed already"
            continue
        fi
        offered "$package" || die "$package $target is not offered, although kubeadm $revision is"
        wanted="$wanted $package=$offered"
    done
    if [ -n "$wanted" ]; then
        apt-mark unhold "$@" >/dev/null
        rc=0
        # shellcheck disable=SC2086 # one word per package
        apt install -y --no-install-recommends $wanted || rc=$?
    fi
    apt-mark hold "$@" >/dev/null
    [ -z "$wanted" ] || [ "$rc" = 0 ] || die "apt-get could not install$wanted: $(reason)"
}

# --- what is done within this operation -------------------------------------------

notes=
if [ -n "${EBB_RUN_DIR:-}" ] && [ -n "${EBB_OPERATION:-}" ]; then
    notes=$(dirname "$EBB_RUN_DIR")/.done-$(echo "$EBB_OPERATION-${EBB_NODE:-}-$target" | tr -c 'A-Za-z0-9.\n-' _)
fi

did() { [ -n "$notes" ] && grep -qx "$1" "$notes" 2>/dev/null; }
note() { [ -z "$notes" ] || echo "$1" >>"$notes"; }

# --- stage --------------------------------------------------------------------------

packages() {
    echo kubeadm kubelet
    if has kubectl; then echo kubectl; fi
}

download() {
    wanted=
    for package in $(packages); do
        at_target "$package" && continue
        offered "$package" || die "$package $target is not offered, although kubeadm $revision is"
        wanted="$wanted $package=$offered"
    done
    if [ -z "$wanted" ]; then
        say "the packages of $target are installed already"
        return 0
    fi
    # Nothing is installed by --download-only; without the flag apt would refuse
    # because the packages are held.
    # shellcheck disable=SC2086 # one word per package
    apt install -y --no-install-recommends --download-only --allow-change-held-packages $wanted ||
        die "apt-get could not download$wanted: $(reason)"
}

# new_kubeadm: sets $new to the target's kubeadm, taken out of the downloaded
# package without installing it.
new_kubeadm() {
    new=
    if at_target kubeadm; then
        new=kubeadm
        return 0
    fi
    archives=$(apt_dir Dir::Cache::archives /var/cache/apt/archives)
    for deb in "$archives/kubeadm_$(echo "$revision" | sed 's/:/%3a/')_"*.deb; do
        if [ -f "$deb" ] && dpkg-deb -x "$deb" "$tmp/kubeadm" 2>/dev/null && [ -x "$tmp/kubeadm/usr/bin/kubeadm" ]; then
            new=$tmp/kubeadm/usr/bin/kubeadm
            return 0
        fi
    done
    return 1
}

# image_repository: the one the cluster was made with; every node may read it.
image_repository() {
    [ -f /etc/kubernetes/kubelet.conf ] && command -v kubectl >/dev/null 2>&1 || return 0
    kubectl --kubeconfig /etc/kubernetes/kubelet.conf --request-timeout 10s -n kube-system get configmap kubeadm-config \
        -o 'jsonpath={.data.ClusterConfiguration}' 2>/dev/null </dev/null | sed -n 's/^imageRepository: *"*\([^" ]*\)"*$/\1/p'
}

# mirrors is where nodes are told of registry mirrors, by convention.
mirrors=${EBB_MIRRORS_DIR:-/etc/containerd/certs.d}

pull_image() {
    if command -v crictl >/dev/null 2>&1; then
        crictl pull "$1" </dev/null
    elif [ -d "$mirrors" ]; then
        # Unlike crictl, ctr does not go through containerd's own configuration:
        # without this it would pass by the mirrors of a node that needs them.
        ctr -n k8s.io images pull --hosts-dir "$mirrors" "$1" >/dev/null </dev/null
    else
        ctr -n k8s.io images pull "$1" >/dev/null </dev/null
    fi
}

# prepull: only saves time, so what does not work is said and left.
prepull() {
    new_kubeadm || { say "images are not pulled ahead: the package of kubeadm $target is not in apt's cache"; return 0; }
    repository=$(image_repository)
    set -- --kubernetes-version "v$(plain "$target")"
    [ -z "$repository" ] || set -- "$@" --image-repository "$repository"
    if [ "$EBB_ROLE" != worker ]; then
        "$new" config images pull "$@" </dev/null || say "images are not all pulled ahead: kubeadm config images pull failed"
        return 0
    fi
    if ! command -v crictl >/dev/null 2>&1 && ! command -v ctr >/dev/null 2>&1; then
        say "images are not pulled ahead: neither crictl nor ctr is on this node"
        return 0
    fi
    # A worker runs none of the control plane's images.
    for image in $("$new" config images list "$@" 2>/dev/null </dev/null | grep -E '/(kube-proxy|pause|coredns):'); do
        pull_image "$image" || say "image $image is not pulled ahead"
    done
}

stage() {
    ensure_offered
    say "kubeadm $revision is offered"
    download
    prepull
    say "staged $target"
}

# --- upgrade ------------------------------------------------------------------------

kubeadm_upgrade() {
    if did kubeadm; then
        say "kubeadm upgrade to $target is done already"
        return 0
    fi
    # shellcheck disable=SC2086 # the flags are separated by spaces
    case $EBB_ROLE in
    first-control-plane) kubeadm upgrade apply "v$target" -y $flags </dev/null || die "kubeadm upgrade apply v$target failed with exit code $?" ;;
    *) kubeadm upgrade node $flags </dev/null || die "kubeadm upgrade node failed with exit code $?" ;;
    esac
    note kubeadm
}

restart_kubelet() {
    if did kubelet; then
        say "the kubelet was restarted already"
        return 0
    fi
    if ! systemctl daemon-reload || ! systemctl restart kubelet; then
        die "the kubelet could not be restarted: see journalctl -u kubelet"
    fi
    note kubelet
}

# verify COMMAND...: fails unless a line of its output ends with exactly the target.
verify() {
    for word in $("$@" 2>/dev/null </dev/null | awk '{print $NF}'); do
        if is_target "$word"; then
            return 0
        fi
    done
    die "$1 ($(command -v "$1" || echo 'not on PATH')) is not $target after the packages were installed; \`$*\` says: $("$@" 2>&1 </dev/null | tail -n 1)"
}

upgrade() {
    ensure_offered
    put kubeadm
    verify kubeadm version -o short
    kubeadm_upgrade
    if has kubectl; then
        put kubelet kubectl
    else
        put kubelet
    fi
    verify kubelet --version
    restart_kubelet
    say "upgraded to $target"
}

case $EBB_ROLE in
first-control-plane | control-plane | worker) ;;
*) die "unknown EBB_ROLE $EBB_ROLE" ;;
esac
case $EBB_PHASE in
stage) stage ;;
upgrade) upgrade ;;
*) die "unknown EBB_PHASE $EBB_PHASE" ;;
esac
