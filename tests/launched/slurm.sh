#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Steps of srun: a cluster of two nodes on this machine, for the time of the test. Where Slurm is not
# installed, or may not be started, the output says so and nothing is tested.
#
#   slurm.sh DTENSOR LOOP MPI...
set -u
dtensor=$1 loop=$2
shift 2
mpis=" $* "
folder=$(mktemp -d) || exit 1
model=examples/checkpoint
n=0
PATH=$PATH:/usr/sbin:/sbin

clean() {
    for file in "$folder"/*.pid; do
        [ -f "$file" ] && kill "$(cat "$file")" 2>/dev/null
    done
    sleep 0.5
    rm -rf "$folder"
}
trap clean EXIT

skip() {
    echo "skipped: $*"
    echo "1 passed, 0 failed"
    exit 0
}

fail() {
    echo "FAIL $*"
    sed 's/^/    /' "$folder/out" "$folder/err"
    exit 1
}

pass() {
    n=$((n + 1))
    echo "pass  $*"
}

write_configuration() {
    host=$(hostname -s)
    cat >"$folder/slurm.conf" <<END
ClusterName=test
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$1
AuthType=auth/munge
AuthInfo=socket=$folder/munge.socket
CryptoType=crypto/munge
SlurmUser=$(id -un)
SlurmdUser=$(id -un)
StateSaveLocation=$folder
SlurmdSpoolDir=$folder/%n
SlurmctldPidFile=$folder/controller.pid
SlurmdPidFile=$folder/%n.pid
SlurmctldLogFile=$folder/controller.log
SlurmdLogFile=$folder/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
KillWait=2
SlurmdParameters=config_overrides
NodeName=n1 NodeHostname=$host NodeAddr=127.0.0.1 Port=$(($1 + 1)) CPUs=4
NodeName=n2 NodeHostname=$host NodeAddr=127.0.0.1 Port=$(($1 + 2)) CPUs=4
PartitionName=all Nodes=ALL Default=YES OverSubscribe=YES
END
    export SLURM_CONF="$folder/slurm.conf"
}

start_cluster() {
    head -c 1024 /dev/urandom >"$folder/key" && chmod 600 "$folder/key" && chmod 755 "$folder" &&
        munged --force --key-file="$folder/key" --socket="$folder/munge.socket" \
            --pid-file="$folder/munge.pid" --seed-file="$folder/seed" \
            --log-file="$folder/munge.log" &&
        write_configuration $((20000 + $$ % 10000 * 3)) &&
        slurmctld && slurmd -N n1 && slurmd -N n2 || return 1
    for _ in 1 2 3 4 5 6 7 8 9 10; do
        [ "$(sinfo -h -t idle -o %D)" = 2 ] && return 0
        sleep 1
    done
    return 1
}

# step MPI NODES PROCESSES WORDS...: a step's exit code in $code
step() {
    type=$1 nodes=$2 processes=$3
    shift 3
    timeout 60 srun --mpi="$type" -N "$nodes" -n "$processes" "$@" </dev/null \
        >"$folder/out" 2>"$folder/err"
    code=$?
}

for program in munged slurmctld slurmd srun sinfo; do
    command -v $program >/dev/null || skip "Slurm is not installed ($program)"
done
[ "$(id -u)" -eq 0 ] || skip "Slurm's nodes are started as root only"
start_cluster >"$folder/err" 2>&1 || skip "Slurm does not start here: $(tail -n 1 "$folder/err")"

"$dtensor" generate -q -m $model -p "ROMEO:" -n 20 >"$folder/alone" || exit 1
# Steps over two nodes with PMIx would have both nodes make the same folder on this one machine.
for way in "pmix openmpi 1 1" "pmix openmpi 1 2" "pmix openmpi 1 4" \
    "pmi2 mpich 2 2" "pmi2 mpich 2 3" "pmi2 mpich 2 4"; do
    # shellcheck disable=SC2086
    set -- $way
    case $mpis in *" $2 "*) ;; *) continue ;; esac
    srun --mpi=list 2>&1 | grep -q "$1" || continue
    step "$1" "$3" "$4" "$dtensor" generate -m $model -p "ROMEO:" -n 20
    [ "$code" -eq 0 ] || fail "exit code $code of $4 processes on $3 nodes, --mpi=$1"
    cmp -s "$folder/out" "$folder/alone" || fail "other text of $4 processes, --mpi=$1"
    pass "$4 processes on $3 nodes with --mpi=$1"
done

step none 1 2 "$dtensor" generate -m $model -p "ROMEO:" -n 20
[ "$code" -eq 2 ] || [ "$code" -eq 1 ] || fail "exit code $code without an MPI"
grep -q "it is given --mpi=pmix" "$folder/err" || fail "nobody says what srun has to be given"
pass "a step that speaks no MPI is refused"

# The survivor names the process that was killed, and the step ends.
case $mpis in
*" mpich "*)
    step pmi2 2 2 sh -c "echo \$\$ >\"$folder/victim.\$SLURM_PROCID\"; exec \"$loop\" 60 2" &
    for _ in 1 2 3 4 5 6 7 8 9 10; do
        [ -s "$folder/victim.1" ] && break
        sleep 0.5
    done
    sleep 1
    kill -9 "$(cat "$folder/victim.1")" || fail "there is no process 1"
    begin=$(date +%s)
    wait
    [ $(($(date +%s) - begin)) -le 10 ] || fail "a step outlives a killed process"
    grep -q "rank 1" "$folder/err" || fail "the killed process is not named"
    pass "a killed process is named by the others"
    ;;
esac
echo "$n passed, 0 failed"
