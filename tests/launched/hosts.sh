#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Ranks on several hosts: two network namespaces joined by a cable. Where that is not permitted, the
# processes of one host talk over TCP on its loopback instead, and the output says so.
#
#   hosts.sh openmpi|mpich MPIRUN LOOP
set -u
mpi=$1 mpirun=$2 loop=$3
folder=$(mktemp -d) || exit 1
a=dta$$ b=dtb$$

clean() {
    ip netns del $a 2>/dev/null
    ip netns del $b 2>/dev/null
    rm -rf "$folder"
}
trap clean EXIT

fail() {
    echo "FAIL $*"
    sed 's/^/    /' "$folder/out" "$folder/err"
    exit 1
}

# These hosts are one machine, whose processes could share memory.
export DTENSOR_MPI_SHARED=off

lay_cable() {
    ip netns add $a && ip netns add $b &&
        ip -n $a link add cable type veth peer name cable netns $b &&
        ip -n $a addr add 10.77.0.1/24 dev cable && ip -n $b addr add 10.77.0.2/24 dev cable &&
        ip -n $a link set cable up && ip -n $b link set cable up &&
        ip -n $a link set lo up && ip -n $b link set lo up
} 2>/dev/null

# Stands in for ssh: "agent [OPTION]... 10.77.0.2 COMMAND", each host with a name of its own.
write_agent() {
    cat >"$folder/agent" <<END
#!/bin/sh
while [ "\${1#-}" != "\$1" ]; do shift; done
case \$1 in 10.77.0.1) ns=$a ;; *) ns=$b ;; esac
shift
exec ip netns exec \$ns unshare --uts sh -c "hostname \$ns && \$*"
END
    chmod +x "$folder/agent"
}

# launch PROCESSES RANKS
launch() {
    if [ "$mpi" = openmpi ]; then
        ip netns exec $a unshare --uts sh -c "hostname $a && exec \"\$@\"" sh "$mpirun" \
            -n "$1" --host 10.77.0.1:2,10.77.0.2:2 --map-by node \
            --mca plm_rsh_agent "$folder/agent" --mca btl tcp,vader,self \
            --mca oob_tcp_if_include 10.77.0.0/24 --mca btl_tcp_if_include 10.77.0.0/24 \
            -x DTENSOR_MODULES -x DTENSOR_MPI_SHARED "$loop" 1 "$2"
    else
        ip netns exec $a unshare --uts sh -c "hostname $a && exec \"\$@\"" sh "$mpirun" \
            -n "$1" -hosts 10.77.0.1,10.77.0.2 -ppn 1 -iface cable -launcher ssh \
            -launcher-exec "$folder/agent" "$loop" 1 "$2"
    fi
}

launch_on_loopback() {
    if [ "$mpi" = openmpi ]; then
        "$mpirun" -n "$1" --mca pml ob1 --mca btl tcp,self --mca btl_tcp_if_include lo "$loop" 1 "$2"
    else
        UCX_TLS=tcp,self UCX_NET_DEVICES=lo "$mpirun" -n "$1" "$loop" 1 "$2"
    fi
}

if lay_cable; then
    write_agent
    start=launch where="two hosts (network namespaces)"
else
    start=launch_on_loopback where="TCP on the loopback (network namespaces are not permitted)"
fi

# Sums of the ranks' numbers: pure, and with two ranks per process.
for case in "2 2 1" "4 4 6" "2 4 6"; do
    set -- $case
    $start "$1" "$2" </dev/null >"$folder/out" 2>"$folder/err" ||
        fail "$2 ranks in $1 processes, $where: exit code $?"
    grep -q "^sum $3\$" "$folder/out" || fail "$2 ranks in $1 processes, $where: another sum"
    echo "pass  $2 ranks in $1 processes, $where"
done
echo "3 passed, 0 failed"
