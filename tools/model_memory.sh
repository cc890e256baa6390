#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# What published models need in memory, per rank: writes the sizes of their config.json into a folder
# and asks `dtensor plan`, which needs no weights. docs/model_memory.md shows what it prints.
#
#   model_memory.sh DTYPE [TOKENS [NAMES]]    bf16, 8192 tokens of one sequence, names that hold a text
#
# The dtensor of PATH is asked, or $DTENSOR.
set -eu
dtensor=${DTENSOR:-dtensor}
dtype=$1
tokens=${2:-8192}
names=${3:-}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Of each: what Hugging Face calls it, model_type, then hidden_size, layers, heads, kv heads, head_dim,
# intermediate_size, vocab_size, whether the head is the embedding, and what else decides sizes.
models() {
    cat <<'END'
Llama-3.2-1B        llama      2048  16  32  8  64  8192 128256 true
Llama-3.2-3B        llama      3072  28  24  8 128  8192 128256 true
Llama-3.1-8B        llama      4096  32  32  8 128 14336 128256 false
Llama-3.3-70B       llama      8192  80  64  8 128 28672 128256 false
Llama-3.1-405B      llama     16384 126 128  8 128 53248 128256 false
Qwen2.5-0.5B        qwen2       896  24  14  2  64  4864 151936 true
Qwen2.5-1.5B        qwen2      1536  28  12  2 128  8960 151936 true
Qwen2.5-3B          qwen2      2048  36  16  2 128 11008 151936 true
Qwen2.5-7B          qwen2      3584  28  28  4 128 18944 152064 false
Qwen2.5-14B         qwen2      5120  48  40  8 128 13824 152064 false
Qwen2.5-32B         qwen2      5120  64  40  8 128 27648 152064 false
Qwen2.5-72B         qwen2      8192  80  64  8 128 29568 152064 false
Qwen3-0.6B          qwen3      1024  28  16  8 128  3072 151936 true
Qwen3-1.7B          qwen3      2048  28  16  8 128  6144 151936 true
Qwen3-4B            qwen3      2560  36  32  8 128  9728 151936 true
Qwen3-8B            qwen3      4096  36  32  8 128 12288 151936 false
Qwen3-14B           qwen3      5120  40  40  8 128 17408 151936 false
Qwen3-32B           qwen3      5120  64  64  8 128 25600 151936 false
Qwen3-30B-A3B       qwen3_moe  2048  48  32  4 128  6144 151936 false "num_experts":128,"num_experts_per_tok":8,"moe_intermediate_size":768
Qwen3-235B-A22B     qwen3_moe  4096  94  64  4 128 12288 151936 false "num_experts":128,"num_experts_per_tok":8,"moe_intermediate_size":1536
gemma-3-1b          gemma3_text 1152 26   4  1 256  6912 262144 true  "sliding_window":512
gemma-3-4b          gemma3_text 2560 34   8  4 256 10240 262208 true  "sliding_window":1024
gemma-3-12b         gemma3_text 3840 48  16  8 256 15360 262208 true  "sliding_window":1024
gemma-3-27b         gemma3_text 5376 62  32 16 128 21504 262208 true  "sliding_window":1024,"query_pre_attn_scalar":168
END
}

config() {
    printf '{"model_type":"%s","hidden_size":%d,"num_hidden_layers":%d,"num_attention_heads":%d,' "$1" "$2" "$3" "$4"
    printf '"num_key_value_heads":%d,"head_dim":%d,"intermediate_size":%d,"vocab_size":%d,' "$5" "$6" "$7" "$8"
    printf '"tie_word_embeddings":%s,"max_position_embeddings":1048576%s}\n' "$9" "${10:+,${10}}"
}

printf '%-16s %11s' "$dtype, GiB" parameters
for tp in 1 2 4 8; do printf '   %15s' "tp=$tp"; done
printf '\n'
models | grep -e "$names" | while read -r name sizes; do
    # shellcheck disable=SC2086 # sizes are words
    config $sizes >"$work/config.json"
    line=$(printf '%-16s' "$name")
    for tp in 1 2 4 8; do
        "$dtensor" plan -q --model "$work" --mesh tp=$tp --dtype "$dtype" --sequence "$tokens" --json >"$work/plan"
        line=$line$(tr ',{}' '\n\n\n' <"$work/plan" | awk -F: -v first=$((tp == 1)) '
            /"parameters":/ { parameters = $2 }
            /"weight_bytes":/ { weights = $2 }
            /"cache_bytes":/ { if (weights + $2 > all) { all = weights + $2; w = weights; c = $2 } }
            END {
                if (first) printf " %9.3f B", parameters / 1e9
                printf "   %7.2f + %5.2f", w / 1073741824, c / 1073741824
            }')
    done
    echo "$line"
done
