#!/bin/sh
# kubeadm-bundle: upgrade a kubeadm node from a directory that is on the node
# already, without any package manager:
#   $EBB_BUNDLE_DIR/<version>/kubeadm, kubelet, kubectl, images/*.tar (optional)
#
# Ebb runs it on the node, as root, with
#   EBB_PHASE            stage: check the bundle and import its images
#                        upgrade: upgrade this node, which is drained
#   EBB_ROLE             first-control-plane, control-plane or worker
#   EBB_TARGET_VERSION   for example 1.37.2
#   EBB_BUNDLE_DIR       default /opt/ebb/bundle
#   EBB_KUBEADM_FLAGS    of kubeadm upgrade apply or node, which this role runs
#   EBB_OPERATION        names the operation: within one, a finished step is not repeated
#   EBB_RUN_DIR          directory of this run; the notes on finished steps lie beside it
# Exit: 0 done, 75 try again later, anything else fails the node.
set -eu

: "${EBB_PHASE:?}" "${EBB_ROLE:?}" "${EBB_TARGET_VERSION:?}"
target=${EBB_TARGET_VERSION#v}
flags=${EBB_KUBEADM_FLAGS:-}
export LC_ALL=C
# Nodes without a package manager keep their binaries in /opt/bin, which neither
# sudo nor systemd has on its PATH.
export PATH="$PATH:/usr/local/bin:/opt/bin"

say() { echo "ebb: $*"; }
die() { echo "ebb: error: $*" >&2; exit 1; }

tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
trap 'exit 143' TERM
trap 'exit 130' INT

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

find_bundle() {
    root=${EBB_BUNDLE_DIR:-/opt/ebb/bundle}
    for bundle in "$root/$target" "$root/v$target"; do
        if [ -d "$bundle" ]; then
            return 0
        fi
    done
    die "there is no bundle of $target on this node: $root/$target is not a directory"
}

# --- what is done within this operation -------------------------------------------

notes=
if [ -n "${EBB_RUN_DIR:-}" ] && [ -n "${EBB_OPERATION:-}" ]; then
    notes=$(dirname "$EBB_RUN_DIR")/.done-$(echo "$EBB_OPERATION-${EBB_NODE:-}-$target" | tr -c 'A-Za-z0-9.\n-' _)
fi

did() { [ -n "$notes" ] && grep -qx "$1" "$notes" 2>/dev/null; }
note() { [ -z "$notes" ] || echo "$1" >>"$notes"; }

# --- stage --------------------------------------------------------------------------

# check NAME: the bundle's program is there and is the target. A bundle may lie on
# a medium from which nothing can be executed, then a copy is asked.
check() {
    [ -f "$bundle/$1" ] || die "$bundle/$1 is missing"
    if [ -x "$bundle/$1" ] && version "$bundle/$1" >/dev/null; then
        says_target "$bundle/$1" || die "$bundle/$1 is not $target: it says $(version "$bundle/$1" | tail -n 1)"
        return 0
    fi
    cp "$bundle/$1" "$tmp/$1"
    chmod 0755 "$tmp/$1"
    says_target "$tmp/$1" || die "$bundle/$1 is not $target, or cannot be executed on this node"
    rm "$tmp/$1"
}

import_images() {
    for archive in "$bundle"/images/*.tar; do
        [ -f "$archive" ] || continue
        if did "image ${archive##*/}"; then
            say "$archive is imported already"
            continue
        fi
        command -v ctr >/dev/null 2>&1 || die "$archive cannot be imported: ctr is not on this node"
        say "importing $archive"
        ctr -n k8s.io images import "$archive" </dev/null || die "ctr could not import $archive"
        note "image ${archive##*/}"
    done
}

stage() {
    check kubeadm
    check kubelet
    if [ -f "$bundle/kubectl" ]; then
        check kubectl
    fi
    import_images
    say "staged $target"
}

# --- upgrade ------------------------------------------------------------------------

# put NAME: replaces the node's program in one step, so that there is always a
# whole one. kubeadm may be new on the node and then goes beside the kubelet.
put() {
    there=$(command -v "$1" || true)
    if [ -z "$there" ]; then
        there=$(command -v kubelet) || die "there is no kubelet on this node's PATH ($PATH)"
        there=$(dirname "$there")/$1
    fi
    if [ -x "$there" ] && says_target "$there"; then
        say "$there is $target already"
        return 0
    fi
    [ -f "$bundle/$1" ] || die "$bundle/$1 is missing"
    rm -f "$there.ebb-new"
    cp "$bundle/$1" "$there.ebb-new"
    chmod 0755 "$there.ebb-new"
    mv -f "$there.ebb-new" "$there"
    says_target "$there" || die "$there is not $target after it was replaced: it says $(version "$there" | tail -n 1)"
    say "$there replaced"
}

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

upgrade() {
    put kubeadm
    kubeadm_upgrade
    put kubelet
    if [ -f "$bundle/kubectl" ] && command -v kubectl >/dev/null 2>&1; then
        put kubectl
    fi
    restart_kubelet
    say "upgraded to $target"
}

case $EBB_ROLE in
first-control-plane | control-plane | worker) ;;
*) die "unknown EBB_ROLE $EBB_ROLE" ;;
esac
find_bundle
case $EBB_PHASE in
stage) stage ;;
upgrade) upgrade ;;
*) die "unknown EBB_PHASE $EBB_PHASE" ;;
esac
