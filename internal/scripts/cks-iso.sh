#!/bin/sh
# cks-iso: upgrade a node of CloudStack's Kubernetes service (CKS), or one that is laid out
# like it, with its programs in /opt/bin, from the binaries ISO of the target version, which
# is in the machine's drive:
#   k8s/kubeadm, kubelet, kubectl        for /opt/bin
#   docker/*.tar                         image archives
#   cni/cni-plugins-*64.tgz              for /opt/cni/bin
#   cri-tools/crictl-linux-*64.tar.gz    for /opt/bin
#   provider.yaml, autoscaler.yaml       for /opt/provider and /opt/autoscaler, when there
#   network.yaml, dashboard.yaml         applied after the first control plane, where the
#                                        cluster has what they hold
# kubelet.service and 10-kubeadm.conf, which are there too, are for new nodes: as CKS does,
# an upgrade leaves those of the node alone.
#
# Ebb runs it on the node, as root, with
#   EBB_PHASE            stage: check the ISO and import its images
#                        upgrade: upgrade this node, which is drained
#   EBB_ROLE             first-control-plane, control-plane or worker
#   EBB_TARGET_VERSION   for example 1.37.2
#   EBB_ISO_WAIT         seconds to wait until the ISO is there, default 120: it appears
#                        some seconds after it was attached
#   EBB_OPT_DIR          the node's /opt, where it is another directory
#   EBB_KUBEADM_FLAGS    of kubeadm upgrade apply or node, which this role runs
#   EBB_OPERATION        names the operation: within one, a finished step is not repeated
#   EBB_RUN_DIR          directory of this run; the notes on finished steps lie beside it
# The ISO is mounted read-only for as long as this runs. It is ejected at the end of the
# upgrade, and when something fails; not when it is to be tried again.
# Exit: 0 done, 75 try again later, anything else fails the node.
set -eu

: "${EBB_PHASE:?}" "${EBB_ROLE:?}" "${EBB_TARGET_VERSION:?}"
target=${EBB_TARGET_VERSION#v}
flags=${EBB_KUBEADM_FLAGS:-}
opt=${EBB_OPT_DIR:-/opt}
iso_wait=${EBB_ISO_WAIT:-120}
kubeconfig=/etc/kubernetes/admin.conf
export LC_ALL=C
# Neither sudo nor systemd has these on PATH.
export PATH="$PATH:/usr/local/bin:/usr/sbin:/sbin"

say() { echo "ebb: $*"; }
die() { echo "ebb: error: $*" >&2; exit 1; }
retry() { echo "ebb: try again later: $*" >&2; exit 75; }

case $EBB_ROLE in
first-control-plane | control-plane | worker) ;;
*) die "unknown EBB_ROLE $EBB_ROLE" ;;
esac
# The node's own programs, and no others of that name: what else is on PATH stays as it is.
bin=$opt/bin
[ -x "$bin/kubelet" ] || die "there is no kubelet in $bin: a node of CKS has one there"
export PATH="$bin:$PATH"

# --- what is left behind ------------------------------------------------------------

# Beside the programs, where they can be executed: /tmp may be mounted with noexec.
# There is one run at a time on a machine: what is there was left by one that was killed.
rm -rf "$bin"/.ebb-*
tmp=$(mktemp -d "$bin/.ebb-XXXXXX")
device= # of the ISO of the target version, once it is found
mounted=no
mnt=/run/ebb-iso
if [ -n "${EBB_RUN_DIR:-}" ]; then
    mnt=$(dirname "$EBB_RUN_DIR")/.iso
fi

unmount() {
    [ "$mounted" = yes ] || return 0
    for pause in 1 2 3 0; do
        if umount "$mnt" 2>"$tmp/err"; then
            mounted=no
            rmdir "$mnt"
            return 0
        fi
        sleep "$pause"
    done
    say "the ISO cannot be unmounted: $(tail -n 1 "$tmp/err")"
}

eject_iso() {
    if ! command -v eject >/dev/null 2>&1; then
        say "the ISO is not ejected: eject is not on this node"
    elif ! eject "$device" >"$tmp/err" 2>&1 </dev/null; then
        say "the ISO cannot be ejected: $(tail -n 1 "$tmp/err")"
    fi
}

clean_up() {
    code=$?
    trap '' TERM INT
    unmount
    if [ -n "$device" ] && [ "$mounted" = no ] && [ "$code" != 75 ] && { [ "$EBB_PHASE" = upgrade ] || [ "$code" != 0 ]; }; then
        eject_iso
    fi
    rm -rf "$tmp"
}
trap clean_up EXIT
trap 'exit 143' TERM
trap 'exit 130' INT

# --- versions: exact, except for build metadata ---------------------------------

# plain VERSION: without a leading v and without +metadata.
plain() { p=${1#v}; echo "${p%%+*}"; }

is_target() { [ "$(plain "$1")" = "$(plain "$target")" ]; }

# version PROGRAM: asks kubeadm, kubelet or kubectl at that path for its version.
version() {
    case ${1##*/} in
    kubeadm*) "$1" version -o short ;;
    kubectl*) "$1" version --client ;;
    *) "$1" --version ;;
    esac 2>/dev/null </dev/null
}

# says_target PROGRAM: a line of its version ends with exactly the target.
says_target() {
    for word in $(version "$1" | awk '{print $NF}'); do
        if is_target "$word"; then
            return 0
        fi
    done
    return 1
}

# --- the ISO ------------------------------------------------------------------------

# volumes: the devices with an ISO 9660 file system. Another one may be the cloud's
# configuration of this machine.
volumes() {
    if command -v blkid >/dev/null 2>&1; then
        blkid -c /dev/null -o device -t TYPE=iso9660 2>/dev/null || true
    else
        lsblk -rpno NAME,FSTYPE 2>/dev/null | awk '$2 == "iso9660" {print $1}'
    fi
}

# fetch NAME: copies a program of the ISO to $tmp: on the ISO it may lack the permission
# to be executed.
fetch() {
    [ -f "$mnt/k8s/$1" ] || return 1
    cp "$mnt/k8s/$1" "$tmp/$1" && chmod 0755 "$tmp/$1"
}

# is_it DEVICE: the volume that is mounted holds the target's binaries; else $seen says
# what it holds.
is_it() {
    if ! fetch kubeadm; then
        seen="$seen; $1 holds no k8s/kubeadm"
    elif ! says_target "$tmp/kubeadm"; then
        seen="$seen; the kubeadm on $1 says $(version "$tmp/kubeadm" | tail -n 1)"
    else
        return 0
    fi
    return 1
}

# look: mounts the ISO of the target version and sets $device, unless there is none yet.
look() {
    seen=
    for candidate in $(volumes); do
        if ! mount -t iso9660 -o ro "$candidate" "$mnt" 2>"$tmp/err"; then
            seen="$seen; $candidate cannot be mounted: $(tail -n 1 "$tmp/err")"
            continue
        fi
        mounted=yes
        if is_it "$candidate"; then
            device=$candidate
            return 0
        fi
        umount "$mnt" || die "$mnt cannot be unmounted"
        mounted=no
    done
    return 1
}

# close_trays: what was ejected in an earlier attempt may still be in its drive.
close_trays() {
    command -v eject >/dev/null 2>&1 || return 0
    for drive in /dev/sr[0-9]*; do
        [ ! -b "$drive" ] || eject -t "$drive" >/dev/null 2>&1 </dev/null || true
    done
}

mount_iso() {
    [ ! -d "$mnt" ] || umount "$mnt" 2>/dev/null || true # left by a run that was killed
    mkdir -p "$mnt"
    began=$(date +%s)
    announced=no
    until look; do
        waited=$(($(date +%s) - began))
        if [ "$waited" -ge "$iso_wait" ]; then
            rmdir "$mnt"
            die "no ISO of $target has appeared within $waited seconds${seen:-; there is no ISO 9660 volume on this node}"
        fi
        if [ "$announced" = no ]; then
            say "waiting for the ISO of $target$seen"
            announced=yes
            close_trays
        fi
        sleep 1
    done
    say "the ISO of $target is on $device"
}

# --- what is done within this operation -------------------------------------------

notes=
if [ -n "${EBB_RUN_DIR:-}" ] && [ -n "${EBB_OPERATION:-}" ]; then
    notes=$(dirname "$EBB_RUN_DIR")/.done-$(echo "$EBB_OPERATION-${EBB_NODE:-}-$target" | tr -c 'A-Za-z0-9.\n-' _)
fi

did() { [ -n "$notes" ] && grep -qx "$1" "$notes" 2>/dev/null; }
note() { [ -z "$notes" ] || echo "$1" >>"$notes"; }

# --- stage --------------------------------------------------------------------------

# check NAME: the ISO's program is there and is the target.
check() {
    fetch "$1" || die "$device is not a binaries ISO: k8s/$1 is missing"
    says_target "$tmp/$1" || die "k8s/$1 of the ISO is not $target: it says $(version "$tmp/$1" | tail -n 1)"
    rm -f "$tmp/$1"
}

import_images() {
    for archive in "$mnt"/docker/*.tar; do
        [ -f "$archive" ] || continue
        if did "image ${archive##*/}"; then
            say "${archive##*/} is imported already"
            continue
        fi
        command -v ctr >/dev/null 2>&1 || die "docker/${archive##*/} cannot be imported: ctr is not on this node"
        say "importing docker/${archive##*/}"
        ctr -n k8s.io images import "$archive" </dev/null || die "ctr could not import docker/${archive##*/}"
        note "image ${archive##*/}"
    done
}

stage() {
    mount_iso
    for program in kubeadm kubelet kubectl; do
        check "$program"
    done
    import_images
    say "staged $target"
}

# --- upgrade ------------------------------------------------------------------------

# put NAME: replaces the node's program in one step, so that there is always a whole one.
put() {
    there=$bin/$1
    if [ -x "$there" ] && says_target "$there"; then
        say "$there is $target already"
        return 0
    fi
    fetch "$1" || die "k8s/$1 is missing on the ISO"
    mv -f "$tmp/$1" "$there"
    says_target "$there" || die "$there is not $target after it was replaced: it says $(version "$there" | tail -n 1)"
    say "$there replaced"
}

# unpack ARCHIVE DIR: the files of an archive, when the ISO has it. Each is replaced, not
# written over: a program of it may run.
unpack() {
    [ -f "$1" ] || return 0
    mkdir -p "$2"
    tar -xzof "$1" -C "$2" </dev/null || die "${1#"$mnt"/} of the ISO could not be unpacked in $2"
    say "${1#"$mnt"/} unpacked in $2"
}

# keep NAME FILE: a template that CKS looks for on the node, when the ISO has it.
keep() {
    [ -f "$mnt/$1" ] || return 0
    mkdir -p "${2%/*}"
    cp "$mnt/$1" "$2"
    chmod 0644 "$2"
    say "$2 replaced"
}

put_extras() {
    if did extras; then
        return 0
    fi
    for archive in "$mnt"/cni/cni-plugins-*64.tgz; do
        unpack "$archive" "$opt/cni/bin"
    done
    for archive in "$mnt"/cri-tools/crictl-linux-*64.tar.gz; do
        unpack "$archive" "$bin"
    done
    keep provider.yaml "$opt/provider/provider.yaml"
    keep autoscaler.yaml "$opt/autoscaler/autoscaler_tmpl.yaml"
    note extras
}

# apply FLAGS: kubeadm upgrade apply, its output shown and kept in $tmp/out.
apply() {
    # The status goes through a file because sh has no pipefail.
    # shellcheck disable=SC2086 # the flags are separated by spaces
    { rc=0; kubeadm upgrade apply "v$target" -y $flags "$@" </dev/null 2>&1 || rc=$?; echo "$rc" >"$tmp/rc"; } | tee "$tmp/out"
    return "$(cat "$tmp/rc")"
}

kubeadm_upgrade() {
    if did kubeadm; then
        say "kubeadm upgrade to $target is done already"
        return 0
    fi
    rc=0
    # shellcheck disable=SC2086 # the flags are separated by spaces
    case $EBB_ROLE in
    first-control-plane)
        apply || rc=$?
        # CKS's own configuration of CoreDNS may have plugins that kubeadm does not know;
        # CKS, too, then upgrades all the same.
        if [ "$rc" != 0 ] && grep -q CoreDNSUnsupportedPlugins "$tmp/out"; then
            say "once more, without the check of CoreDNS's plugins"
            rc=0
            apply --ignore-preflight-errors=CoreDNSUnsupportedPlugins || rc=$?
        fi
        [ "$rc" = 0 ] || die "kubeadm upgrade apply v$target failed with exit code $rc"
        ;;
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

# --- what runs in the cluster -------------------------------------------------------

kube() { kubectl --kubeconfig "$kubeconfig" --request-timeout 30s "$@" </dev/null; }

await_api() {
    began=$(date +%s)
    until kube get --raw /readyz >/dev/null 2>"$tmp/err"; do
        [ $(($(date +%s) - began)) -lt 120 ] || retry "the API server is not ready: $(tail -n 1 "$tmp/err")"
        sleep 2
    done
}

# in_cluster FILE: the cluster runs something of it. A network or a dashboard that it does
# not run was replaced with another, or removed: a second one is not added.
in_cluster() {
    rc=0
    kube get -f "$1" --ignore-not-found -o name >"$tmp/out" 2>"$tmp/err" || rc=$?
    if grep -Eq '^(daemonset|deployment|statefulset)\.apps/' "$tmp/out"; then
        return 0
    elif [ "$rc" != 0 ] && ! grep -q 'no matches for kind' "$tmp/err"; then
        retry "kubectl get: $(tail -n 1 "$tmp/err")"
    fi
    return 1
}

# apply_manifest NAME
apply_manifest() {
    if [ ! -f "$mnt/$1" ]; then
        say "the ISO has no $1"
    elif ! in_cluster "$mnt/$1"; then
        say "$1 of the ISO is not applied: the cluster runs nothing of it"
    else
        kube apply -f "$mnt/$1"
    fi
}

apply_manifests() {
    if [ "$EBB_ROLE" != first-control-plane ] || did manifests; then
        return 0
    fi
    await_api
    apply_manifest network.yaml || die "kubectl could not apply network.yaml of the ISO"
    # No pod depends on it.
    apply_manifest dashboard.yaml || say "kubectl could not apply dashboard.yaml of the ISO: it stays as it is"
    note manifests
}

upgrade() {
    mount_iso
    put kubeadm
    put_extras
    kubeadm_upgrade
    put kubelet
    put kubectl
    restart_kubelet
    apply_manifests
    say "upgraded to $target"
}

case $EBB_PHASE in
stage) stage ;;
upgrade) upgrade ;;
*) die "unknown EBB_PHASE $EBB_PHASE" ;;
esac
