#!/bin/sh
# What happens on a machine before its systemd: file systems are mounted and the
# host's are let go of. Runs as process 1 of its namespaces.
#   LAB_NAME         host name
#   LAB_DISK         image of the root file system
#   LAB_STATE        folder of the machine on the host: root/ seed/ sysctl/ uuid
#   LAB_HIERARCHIES  cgroup v1 hierarchies, separated by spaces
#   LAB_BUNDLE       folder that is shown, read-only, as /opt/ebb/bundle; may be empty
set -eu
root=$LAB_STATE/root

hostname "$LAB_NAME"
mount -o loop "$LAB_DISK" "$root"
cp -a "$LAB_STATE/seed/." "$root/"

mount -t proc -o nosuid,nodev,noexec proc "$root/proc"
# The kubelet sets these for the whole host: it gets files of its own instead.
(cd "$LAB_STATE/sysctl" && find . -type f) | while read -r file; do
    mount --bind "$LAB_STATE/sysctl/$file" "$root/proc/sys/$file"
done

mount -t sysfs -o ro,nosuid,nodev,noexec sysfs "$root/sys"
if [ -e "$root/sys/class/dmi/id/product_uuid" ]; then
    mount --bind "$LAB_STATE/uuid" "$root/sys/class/dmi/id/product_uuid"
fi
# In a cgroup namespace a hierarchy shows the machine's own part only. The folder
# is read-only so that systemd cannot mount more of them.
mount -t tmpfs -o mode=755,nosuid,nodev,noexec tmpfs "$root/sys/fs/cgroup"
for hierarchy in $LAB_HIERARCHIES; do
    options=$hierarchy
    if [ "$hierarchy" = systemd ]; then
        options=none,name=systemd
    fi
    mkdir "$root/sys/fs/cgroup/$hierarchy"
    mount -t cgroup -o "$options" cgroup "$root/sys/fs/cgroup/$hierarchy"
done
mount -o remount,ro "$root/sys/fs/cgroup"

mount -t tmpfs -o mode=755,nosuid tmpfs "$root/dev"
mkdir "$root/dev/net" "$root/dev/pts" "$root/dev/shm" "$root/dev/mqueue"
for device in null zero full random urandom tty kmsg fuse net/tun; do
    [ -e "/dev/$device" ] || continue
    : >"$root/dev/$device"
    mount --bind "/dev/$device" "$root/dev/$device"
done
mount -t devpts -o newinstance,ptmxmode=0666,mode=620,gid=5 devpts "$root/dev/pts"
mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
mount -t mqueue mqueue "$root/dev/mqueue"
ln -s pts/ptmx "$root/dev/ptmx"
ln -s /proc/self/fd "$root/dev/fd"
for stream in 0:stdin 1:stdout 2:stderr; do
    ln -s "/proc/self/fd/${stream%:*}" "$root/dev/${stream#*:}"
done

mount -t tmpfs -o mode=755 tmpfs "$root/run"
mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
if [ -n "$LAB_BUNDLE" ]; then
    # Nothing can be executed from there, as from an ISO image mounted with care.
    mkdir -p "$root/opt/ebb/bundle"
    mount --bind "$LAB_BUNDLE" "$root/opt/ebb/bundle"
    mount -o remount,bind,ro,noexec "$root/opt/ebb/bundle"
fi

cd "$root"
mkdir -p .host
pivot_root . .host
cd /
umount -l /.host
rmdir /.host
mount --make-rshared /
exec env -i container=lab PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd --log-target=journal
