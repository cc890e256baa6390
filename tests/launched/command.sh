#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The command under a launcher: the first process speaks, for all.
#
#   command.sh MPIRUN DTENSOR
set -u
mpirun=$1 dtensor=$2
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT
model=examples/checkpoint
n=0

fail() {
    echo "FAIL $*"
    sed 's/^/    /' "$folder/out" "$folder/err"
    exit 1
}

pass() {
    n=$((n + 1))
    echo "pass  $*"
}

# run CODE PROCESSES WORDS...
run() {
    code=$1 processes=$2
    shift 2
    "$mpirun" -n "$processes" "$dtensor" "$@" </dev/null >"$folder/out" 2>"$folder/err"
    got=$?
    [ $got -eq "$code" ] || fail "exit code $got, not $code: $*"
}

says() { grep -q "$1" "$folder/err" || fail "\"$1\" is not said"; }

"$dtensor" generate -q -m $model -p "ROMEO:" -n 20 >"$folder/alone" || exit 1
for mesh in tp=2 dp=2,tp=2; do
    run 0 2 generate -m $model -p "ROMEO:" -n 20 --mesh $mesh
    cmp -s "$folder/out" "$folder/alone" || fail "other text on $mesh"
    says "mesh $mesh"
done
run 0 4 generate -q -m $model -p "ROMEO:" -n 20
cmp -s "$folder/out" "$folder/alone" || fail "other text on four processes"
pass "generate prints once what one process prints"

run 0 2 logits -q -m $model --tokens 1,2,3 --json
[ "$(grep -c shape "$folder/out")" -eq 1 ] || fail "logits are not printed once"
"$dtensor" gradients -q -m $model --tokens 1,2,3 --mesh tp=2 -o "$folder/one" >"$folder/said" || exit 1
run 0 2 gradients -q -m $model --tokens 1,2,3 -o "$folder/two"
cmp -s "$folder/out" "$folder/said" || fail "other gradients are printed"
cmp -s "$folder/one" "$folder/two" || fail "other gradients are written"
run 0 2 inspect $model
[ "$(grep -c '^parameters' "$folder/out")" -eq 1 ] || fail "inspect does not print once"
run 0 2 --version
[ "$(grep -c '^dtensor' "$folder/out")" -eq 1 ] || fail "--version does not print once"
run 0 2 env
grep -q "process      0 of 2" "$folder/out" || fail "env does not see the launch"
grep -q "chosen       processes joined over" "$folder/out" || fail "env chooses nothing"
grep -q "memory       can be shared" "$folder/out" || fail "env says nothing about memory"
DTENSOR_MPI_SHARED=off
export DTENSOR_MPI_SHARED
run 0 2 env
grep -q "memory       is not shared" "$folder/out" || fail "env does not see DTENSOR_MPI_SHARED"
unset DTENSOR_MPI_SHARED
pass "other commands print once"

# A disk that is full, as the limit of a file's size has it (which MPIs' own files would meet too): the
# process that writes names it, alone.
case $mpirun in
*torchrun.sh)
    (ulimit -f 1000 && "$mpirun" -n 2 "$dtensor" gradients -q -m $model --tokens 1,2,3 \
        -o "$folder/full" </dev/null >"$folder/out" 2>"$folder/err") && fail "a full disk is not seen"
    says "rank 0: .*full.*File too large"
    [ "$(grep -c "File too large" "$folder/err")" -eq 1 ] || fail "a full disk is not named once"
    pass "what the first rank alone finds is named once, as its own" ;;
esac

# Of two processes the second one has no such folder.
started=$(date +%s)
"$mpirun" -n 2 sh -c '[ "$RANK$OMPI_COMM_WORLD_RANK$PMI_RANK" != 1 ] || set -- "$1" /nowhere
    exec "$1" generate -m "$2" -p "ROMEO:" -n 20' sh "$dtensor" $model \
    </dev/null >"$folder/out" 2>"$folder/err" && fail "half of a job runs"
[ $(($(date +%s) - started)) -lt 20 ] || fail "a process waits for one that has failed"
says "process 1.*: --model: /nowhere: No such file"
pass "a process that fails before it joins ends the job with its words"

DTENSOR_MPI_SUMS=mpi
export DTENSOR_MPI_SUMS
run 0 2 env
grep -q "sums         over all ranks by MPI" "$folder/out" || fail "env does not see DTENSOR_MPI_SUMS"
case $mpirun in
*torchrun.sh)
    run 2 2 generate -m $model -p "ROMEO:" -n 20
    says "sums by MPI (DTENSOR_MPI_SUMS=mpi) are not possible over sockets"
    ;;
*)
    run 0 2 generate -v -m $model -p "ROMEO:" -n 20 # two terms have one sum
    cmp -s "$folder/out" "$folder/alone" || fail "other text with sums by MPI"
    says "sums are made by MPI"
    run 0 2 generate -v -m $model -p "ROMEO:" -n 20 --mesh tp=4
    cmp -s "$folder/out" "$folder/alone" || fail "other text with several ranks in a process"
    ! grep -q "sums are made by MPI" "$folder/err" || fail "MPI makes sums of threads"
    "$mpirun" -n 1 "$dtensor" logits -m $model --tokens 1 : -n 1 env DTENSOR_MPI_SUMS=rank-order \
        "$dtensor" logits -m $model --tokens 1 </dev/null >"$folder/out" 2>"$folder/err" &&
        fail "processes that disagree on sums run"
    says "process 0 makes sums by MPI, process 1 in rank order"
    ;;
esac
unset DTENSOR_MPI_SUMS
pass "sums are left to MPI by all processes or by none"

# Slurm itself is asked in slurm.sh, where it is installed: its variables with PMIx and none of mpirun's own, as srun --mpi=pmix sets
# them, and alone, as srun without --mpi does.
case $mpirun in
*openmpi*)
    cat >"$folder/srun" <<'END'
#!/bin/sh
export SLURM_PROCID="$OMPI_COMM_WORLD_RANK" SLURM_STEP_NUM_TASKS="$OMPI_COMM_WORLD_SIZE"
unset OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE OMPI_COMM_WORLD_LOCAL_RANK
unset OMPI_COMM_WORLD_LOCAL_SIZE OMPI_COMM_WORLD_NODE_RANK OMPI_UNIVERSE_SIZE
exec "$@"
END
    chmod +x "$folder/srun"
    "$mpirun" -n 2 "$folder/srun" "$dtensor" generate -m $model -p "ROMEO:" -n 20 </dev/null \
        >"$folder/out" 2>"$folder/err" || fail "ranks that srun started are not joined"
    cmp -s "$folder/out" "$folder/alone" || fail "other text under srun"
    says "mesh tp=2"
    SLURM_STEP_NUM_TASKS=2 SLURM_PROCID=0 "$dtensor" logits -m $model --tokens 1 </dev/null \
        >"$folder/out" 2>"$folder/err" && fail "a step without an MPI runs"
    says "it is given --mpi=pmix"
    pass "srun's processes are joined by the MPI that they speak"
    ;;
esac

run 2 2 generate -m $model -p x --mesh tp=1
[ "$(grep -c 'tp=1' "$folder/err")" -eq 1 ] || fail "a mistake is not named once"
says "2 processes were started"
run 2 2 generate -m $model --prompt-file -
says "standard input"
pass "mistakes are named once"

for rank in 0 1; do
    DTENSOR_FAULT=rank=$rank,op=all_reduce,call=9
    export DTENSOR_FAULT
    run 5 2 generate -q -m $model -p x
    [ "$(grep -c "a fault was injected on rank $rank" "$folder/err")" -eq 1 ] ||
        fail "the fault of rank $rank is not reported once"
done
unset DTENSOR_FAULT
pass "a rank that fails is reported by its process"
echo "$n passed, 0 failed"
