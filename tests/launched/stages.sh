#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Models in stages whose ranks are processes: ten steps of training have the losses, norms and
# parameters of the model in one piece on threads, bit by bit, under every schedule and beside other
# parallelism; and they write the same text. "3d": a step on 256 ranks in four processes.
#
#   stages.sh MPIRUN DTENSOR [all | 3d]
set -u
mpirun=$1 dtensor=$2 part=${3:-}
steps=10 hidden=24 heads=4 pairs=2
# As many pairs of keys and values: gradients of those that ranks hold alike are sums over more than 8
# ranks, which have another order where there are several hosts.
[ "$part" = 3d ] && steps=1 hidden=32 heads=8 pairs=8
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT
passed=0

fail() {
    echo "FAIL $*"
    sed 's/^/    /' "$folder/err"
    exit 1
}

pass() {
    passed=$((passed + 1))
    echo "pass  $*"
}

cat >"$folder/config.json" <<END
{"model_type": "llama", "hidden_size": $hidden, "intermediate_size": 36, "num_hidden_layers": 8,
 "num_attention_heads": $heads, "num_key_value_heads": $pairs, "vocab_size": 53, "rms_norm_eps": 1e-5,
 "max_position_embeddings": 32, "tie_word_embeddings": false}
END
awk 'BEGIN { for (i = 0; i < 2000; i++) { x = (x * 1103 + 12345) % 65536
                                          printf "%c%c", 1 + int(x / 1300), 0 } }' >"$folder/data.bin"

# Losses and norms; where dp adds losses in another way than microbatches do, norms alone.
told='"step".*"grad_norm": [^,]*'

# train RUN OPTION... by $launch
launch=
train() {
    run=$folder/$1
    shift
    # shellcheck disable=SC2086
    $launch "$dtensor" train -q --config "$folder/config.json" --data "$folder/data.bin" \
        --output "$run" --steps $steps --sequence 5 --threads 1 --oversubscribe "$@" \
        </dev/null >"$folder/out" 2>"$folder/err" || fail "$launch: train $*"
    grep -o "$told" "$run/metrics.jsonl" >"$run/losses"
    [ "$(wc -l <"$run/losses")" -eq $steps ] || fail "$launch: train $* told $(wc -l <"$run/losses") steps"
}

# bits PROCESSES BATCH REFERENCE OPTION...: "MESH ..." of processes against the words REFERENCE
bits() {
    n=$1 batch=$2 like=$3
    shift 3
    name=$(echo "$batch $like" | tr ' ' _)
    launch=
    # shellcheck disable=SC2086
    [ -d "$folder/$name" ] || train "$name" --batch "$batch" --mesh $like
    launch="$mpirun -n $n"
    rm -rf "$folder/run"
    train run --batch "$batch" --mesh "$@"
    cmp "$folder/run/losses" "$folder/$name/losses" &&
        cmp "$folder/run/model/model.safetensors" "$folder/$name/model/model.safetensors" ||
        fail "$n processes, --mesh $*: not the bits of $like"
    pass "$n processes, --mesh $*: the bits of $like"
}

# texts PROCESSES MESH OPTION...: of processes in stages, and of one rank
texts() {
    n=$1 mesh=$2
    shift 2
    "$dtensor" "$@" -q -m examples/checkpoint >"$folder/alone" 2>"$folder/err" || fail "$*"
    "$mpirun" -n "$n" "$dtensor" "$@" -q -m examples/checkpoint --mesh "$mesh" \
        </dev/null >"$folder/out" 2>"$folder/err" || fail "$n processes, $mesh: $*"
    cmp "$folder/out" "$folder/alone" || fail "$n processes, $mesh: another text of $*"
    pass "$n processes, $mesh: the text of one rank, $*"
}

if [ "$part" = 3d ]; then
    train one --batch 32 --mesh tp=1 --microbatches 8
    bits 4 32 "dp=4,tp=8 --microbatches 8" pp=8,dp=4,tp=8 --microbatches 8 --zero 1
    paste -d, "$folder/one/losses" "$folder/run/losses" | tr ':' ',' | awk -F, '
        function off(a, b) { return a > b ? a / b - 1 : b / a - 1 }
        { exit !(off($4, $10) < 1e-5 && off($6, $12) < 1e-5) }' || fail "not the loss and norm of one rank"
    pass "the loss and norm of one rank, within 1e-5"
    echo "$passed passed, 0 failed"
    exit 0
fi
bits 2 8 "tp=1 --microbatches 4" pp=2 --microbatches 4
texts 2 pp=2 generate --prompt "ROMEO:" -n 12
if [ "$part" = all ]; then
    for m in 1 4 8 9; do
        for schedule in naive gpipe 1f1b interleaved zb-h1 zb-h2 zbv dualpipev; do
            [ "$schedule" = dualpipev ] && [ $m -lt 4 ] && continue # 2p or more
            bits 2 $((2 * m)) "tp=1 --microbatches $m" pp=2 --schedule $schedule --microbatches $m
        done
    done
    for schedule in 1f1b interleaved zb-h2 dualpipev; do
        for n in 2 4; do
            bits $n 16 "tp=1 --microbatches 8" pp=4 --schedule $schedule --microbatches 8 --recompute blocks
        done
    done
    bits 3 18 "tp=1 --microbatches 9" pp=3 --schedule zbv --microbatches 9
    for n in 2 4; do
        bits $n 8 "tp=2 --microbatches 4" pp=2,tp=2 --schedule zb-h1 --microbatches 4
        bits $n 8 "tp=2 --microbatches 4 --sequence-parallel" tp=2,pp=2 --schedule zbv --microbatches 4 \
            --sequence-parallel
        bits $n 8 "dp=2 --microbatches 4" pp=2,dp=2 --microbatches 4 --zero 1
        bits $n 8 "dp=2 --microbatches 4" dp=2,pp=2 --schedule dualpipev --microbatches 4 --zero 1
        bits $n 8 "dp=2 --zero 3 --microbatches 4" pp=2,dp=2 --schedule zb-h1 --microbatches 4 --zero 3
        bits $n 8 "dp=2,tp=2 --microbatches 4" pp=2,dp=2,tp=2 --microbatches 4 --zero 1
    done
    printf 'ROMEO:\nFirst Citizen:\nWhat\nMy lord\n' >"$folder/prompts"
    for n in 2 4; do
        for mesh in pp=4 pp=2,tp=2; do
            texts $n $mesh generate --prompts-file "$folder/prompts" -n 12
            texts $n $mesh generate --prompts-file "$folder/prompts" -n 12 --sample --seed 3
            texts $n $mesh generate --prompt "ROMEO:" -n 12 --num-beams 3
        done
        texts $n pp=4 logits --tokens 5,6,7,8 --json
    done
    told='"grad_norm": [^,]*'
    bits 4 8 "tp=2 --microbatches 2" pp=2,dp=2,tp=2 --schedule zb-h1 --microbatches 1 --zero 1
fi
echo "$passed passed, 0 failed"
