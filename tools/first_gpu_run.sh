#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Everything that wants a real GPU, by one command: builds, tests, looks for wrong accesses and
# races, measures, and writes what it found as a table. A step that fails or takes too long does not
# keep the others from running. As root on a bare Debian or Ubuntu with a CUDA toolkit; the network
# is needed for packages alone, and not if --packages has them.
#
#   tools/first_gpu_run.sh [--out DIR] [--minutes N] [--only STEP,STEP...] [--build DIR]
#                          [--packages DIR] [--simulated]
#   tools/first_gpu_run.sh --fetch DIR   downloads those packages, on Debian with a network
#
#   --out DIR       logs, JSON and report.md (build/first_gpu_run); several calls may add to it
#   --minutes N     for all steps together (25)
#   --only STEPS    of: machine packages build tests suites memcheck racecheck bench_cuda
#                   bench_models bench_command transformers report
#   --build DIR     the build folder (build/gpu); made if it is not there
#   --packages DIR  with .deb files, which are unpacked below --out; nothing is installed
#   --simulated     tries this script on the simulated device of the tests, with tiny sizes
#
# Exit status: 0, or 1 if a step failed. A step without a device is skipped, and says so.
set -u
cd "$(dirname "$0")/.." || exit 1

PACKAGES="libhwloc-dev libhwloc15 libjansson-dev libjansson4 libpcre2-dev libpcre2-8-0 libpcre2-16-0
libpcre2-32-0 libpcre2-posix3 libutf8proc-dev libutf8proc2 libdnnl-dev libdnnl2 ocl-icd-libopencl1
libudev1 pkgconf pkgconf-bin libpkgconf3"
STEPS="machine packages build tests suites memcheck racecheck bench_cuda bench_models bench_command \
transformers report"
SHAPES="llama-3.2-1b qwen3-4b llama-3-8b"

out=build/first_gpu_run
build=build/gpu
packages=
minutes=25
only=
simulated=
this_step=

fail() {
    echo "first_gpu_run: $1" >&2
    exit 2
}

skip() {
    echo "skipped: $1"
    exit 77
}

fetch() {
    mkdir -p "$1" && cd "$1" || exit 1
    for package in $PACKAGES; do
        apt-get download -q "$package" ||
            echo "first_gpu_run: apt-get knows no package $package, left out" >&2
    done
}

needs_value() {
    [ "$2" -ge 2 ] || fail "$1 needs a value; --help says which"
}

while [ $# -gt 0 ]; do
    case $1 in
    --help | -h)
        sed -n '4,23s/^# \{0,1\}//p' tools/first_gpu_run.sh
        exit 0
        ;;
    --simulated)
        simulated=1
        shift
        continue
        ;;
    --out | --build | --packages | --minutes | --only | --fetch | --step) needs_value "$1" $# ;;
    *) fail "unknown option $1; --help lists them" ;;
    esac
    case $1 in
    --out) out=$2 ;;
    --build) build=$2 ;;
    --packages) packages=$2 ;;
    --minutes) minutes=$2 ;;
    --only) only=$2 ;;
    --step) this_step=$2 ;; # one step, in a process that can be stopped
    --fetch)
        fetch "$2"
        exit
        ;;
    esac
    shift 2
done
case $minutes in
"" | *[!0-9]*) fail "--minutes $minutes: a whole number is needed" ;;
esac
for name in $(echo "$only" | tr ',' ' '); do
    case " $STEPS " in
    *" $name "*) ;;
    *) fail "--only $name: the steps are $STEPS" ;;
    esac
done
if [ -n "$packages" ]; then
    [ -d "$packages" ] || fail "--packages $packages: no such folder; --fetch fills one"
    packages=$(cd "$packages" && pwd)
fi
mkdir -p "$out" || exit 1
out=$(cd "$out" && pwd)
case $build in /*) ;; *) build=$PWD/$build ;; esac

# --- where things are ----------------------------------------------------------------------------

has() { command -v "$1" >/dev/null 2>&1; }

use_packages() {
    root=$out/root
    [ -d "$root/usr" ] || return 0
    multi=$(cc -print-multiarch 2>/dev/null || gcc -print-multiarch 2>/dev/null)
    [ -n "$multi" ] || multi=x86_64-linux-gnu
    PATH=$PATH:$root/usr/bin
    LD_LIBRARY_PATH=$root/usr/lib/$multi:$root/lib/$multi${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    PKG_CONFIG_SYSROOT_DIR=$root
    PKG_CONFIG_LIBDIR=$root/usr/lib/$multi/pkgconfig:$root/usr/share/pkgconfig
    CMAKE_PREFIX_PATH=$root/usr
    export LD_LIBRARY_PATH PKG_CONFIG_SYSROOT_DIR PKG_CONFIG_LIBDIR CMAKE_PREFIX_PATH
}
use_packages

for folder in /usr/local/cuda/bin /opt/cuda/bin; do
    has nvcc || PATH=$PATH:$folder
done
for folder in /usr/local/cuda/bin /usr/local/cuda/compute-sanitizer; do
    has compute-sanitizer || PATH=$PATH:$folder
done
export PATH

# In some containers nvidia-smi is missing where the device is not.
has_device() {
    nvidia-smi -L 2>/dev/null | grep -q '^GPU' || ls /dev/nvidia[0-9]* >/dev/null 2>&1
}

need_device() {
    [ -n "$simulated" ] || has_device || skip "no device"
}

# need_program FILE: of the build
need_program() {
    [ -x "$build/$1" ] || skip "$1 is not built"
}

# "9.0" of the first device becomes 90.
architecture() {
    found=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null |
        head -n 1 | tr -d '. ')
    case $found in
    "" | *[!0-9]*) echo 90 ;;
    *) echo "$found" ;;
    esac
}

# The folder of NCCL in a Python environment, where the system has none.
nccl_root() {
    [ ! -e /usr/include/nccl.h ] && [ ! -e /usr/local/cuda/include/nccl.h ] && has python3 &&
        python3 -c 'import nvidia.nccl; print(list(nvidia.nccl.__path__)[0])' 2>/dev/null
}

# The environment of tests, and of programs that look for a module.
if [ -n "$simulated" ]; then
    DTENSOR_CUDA_MODULE=$build/tests/dtensor_cuda_sim.so
    export DTENSOR_CUDA_MODULE
else
    DTENSOR_TEST_CUDA=real
    # A kernel that is loaded when it is first started may wait for those that run, and these may
    # wait for it: several ranks on one GPU.
    CUDA_MODULE_LOADING=EAGER
    export DTENSOR_TEST_CUDA CUDA_MODULE_LOADING
fi
DTENSOR_SOURCE_DIR=$PWD
DTENSOR_BINARY_DIR=$build
DTENSOR_MODULES=$build/lib/dtensor
export DTENSOR_SOURCE_DIR DTENSOR_BINARY_DIR DTENSOR_MODULES

# --- the steps -----------------------------------------------------------------------------------

step_machine() {
    {
        uname -a
        grep -m 1 PRETTY_NAME /etc/os-release
        grep -m 1 'model name' /proc/cpuinfo
        grep -m 1 MemTotal /proc/meminfo
        echo "cores: $(nproc)"
        git log -1 --format='commit: %h' 2>/dev/null
        for tool in gcc g++ cmake ninja nvcc compute-sanitizer python3; do
            has $tool && echo "$tool: $($tool --version 2>&1 | grep -m 1 -E '[0-9]+\.[0-9]')"
        done
        timeout 30 find / -xdev \( -name nccl.h -o -name 'libnccl.so*' -o -name cublasLt.h \
            -o -name 'libcublasLt.so*' -o -name cudnn_graph.h \) 2>/dev/null
        nvidia-smi 2>&1
        nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.max.sm,clocks.max.mem \
            --format=csv 2>&1
    } | tee "$out/machine.txt"
}

# Whether the build finds its libraries; Criterion is not needed.
has_libraries() {
    has pkg-config && pkg-config --exists hwloc jansson libpcre2-8 libutf8proc &&
        echo '#include <oneapi/dnnl/dnnl.h>' | cc ${CMAKE_PREFIX_PATH:+-I$CMAKE_PREFIX_PATH/include} \
            -E -o /dev/null - 2>/dev/null
}

step_packages() {
    if [ -n "$packages" ]; then
        for deb in "$packages"/*.deb; do
            dpkg-deb -x "$deb" "$out/root" || return 1
        done
        [ -e "$out/root/usr/bin/pkg-config" ] || ln -s pkgconf "$out/root/usr/bin/pkg-config"
        use_packages
    fi
    has_libraries || tools/setup.sh
    has_libraries && return 0
    echo "libraries are missing and cannot be installed here: on a machine with a network run"
    echo "tools/first_gpu_run.sh --fetch DIR, bring DIR here and give --packages DIR"
    return 1
}

step_build() {
    if [ ! -f "$build/CMakeCache.txt" ]; then
        generator=
        ! has ninja || generator=-GNinja
        nccl=$(nccl_root)
        cmake -S . -B "$build" $generator -DCMAKE_BUILD_TYPE=Release -DDT_TEST_PLAIN=ON \
            -DDT_WITH_MPI=OFF "-DDT_WITH_CUDA=$([ -n "$simulated" ] && echo AUTO || echo ON)" \
            "-DDT_CUDA_ARCHITECTURES=$(architecture)-real" ${nccl:+"-DNCCL_ROOT=$nccl"} || return 1
    fi
    cmake --build "$build" --parallel "$(nproc)" \
        --target test_cuda test_cuda_sim dtensor_cli bench_cuda bench_gpu_models
}

step_tests() {
    need_device
    need_program tests/test_cuda
    ctest --test-dir "$build" -R '^cuda/' --output-on-failure --output-junit "$out/tests.xml"
}

# A kernel that fails takes the device's context with it, and all tests after it in that process.
step_suites() {
    need_device
    need_program tests/test_cuda
    ! grep -q '^tests	ok' "$out/steps.tsv" || skip "all tests have passed together"
    failed=0
    for file in tests/cuda/test_*.c; do
        suite=$(basename "$file" .c | sed 's/^test_//')
        echo "== $suite"
        timeout -k 5 60 "$build/tests/test_cuda" -j1 --filter "$suite/*" || failed=1
    done
    return $failed
}

# sanitize TOOL FILTER...: tests that provoke errors of calls are no findings. It lets one kernel run
# at a time, so tests of kernels that wait for each other have to be skipped, as without EAGER.
sanitize() {
    need_device
    [ -z "$simulated" ] || skip "the simulated device has checks of its own"
    has compute-sanitizer || skip "no compute-sanitizer"
    need_program tests/test_cuda
    tool=$1
    shift
    set -- $(for suite in "$@"; do echo "--filter cuda_$suite/*"; done)
    set -f
    DTENSOR_TEST_TIMEOUT_MS=200000
    export DTENSOR_TEST_TIMEOUT_MS
    env -u CUDA_MODULE_LOADING compute-sanitizer --tool "$tool" --report-api-errors no --target-processes all \
        --error-exitcode 9 "$build/tests/test_cuda" -j1 "$@"
}

step_memcheck() {
    sanitize memcheck attention choices elementwise experts linear moves norms random sums comm step
}

step_racecheck() {
    sanitize racecheck attention choices experts linear norms sums
}

step_bench_cuda() {
    need_device
    need_program bench/bench_cuda
    if [ -n "$simulated" ]; then
        set -- --quick --module "$DTENSOR_CUDA_MODULE"
    else
        set --
    fi
    "$build/bench/bench_cuda" --json "$@" >"$out/bench_cuda.json"
}

step_bench_models() {
    need_device
    need_program bench/bench_gpu_models
    "$build/bench/bench_gpu_models" --json ${simulated:+--quick} >"$out/bench_models.json"
}

# config SHAPE: its config.json
config() {
    case $1 in
    llama-3.2-1b) set -- llama 2048 16 32 8 64 8192 128256 true ;;
    qwen3-4b) set -- qwen3 2560 36 32 8 128 9728 151936 true ;;
    llama-3-8b) set -- llama 4096 32 32 8 128 14336 128256 false ;;
    *) set -- llama 64 2 4 2 16 96 128 true ;;
    esac
    cat <<END
{"model_type": "$1", "hidden_size": $2, "num_hidden_layers": $3, "num_attention_heads": $4,
 "num_key_value_heads": $5, "head_dim": $6, "intermediate_size": $7, "vocab_size": $8,
 "max_position_embeddings": 8192, "rms_norm_eps": 1e-05, "rope_theta": 500000.0,
 "hidden_act": "silu", "tie_word_embeddings": $9, "torch_dtype": "bfloat16"}
END
}

# bench_shape SHAPE MESH OPTION...
bench_shape() {
    shape=$1
    mesh=$2
    shift 2
    mkdir -p "$out/shapes/$shape"
    config "$shape" >"$out/shapes/$shape/config.json"
    "$build/bin/dtensor" bench -q --random --model "$out/shapes/$shape" --mesh "$mesh" \
        --device cuda --json "$@" >"$out/command_${shape}_$mesh.json"
}

step_bench_command() {
    need_device
    need_program bin/dtensor
    failed=0
    if [ -n "$simulated" ]; then
        for mesh in tp=1 tp=2; do
            bench_shape tiny $mesh --sequence 4 -n 4 --rounds 1 || failed=1
        done
        return $failed
    fi
    for shape in $SHAPES; do
        bench_shape $shape tp=1 --sequence 2048 -n 64 || failed=1
    done
    for mesh in tp=2 tp=4; do # on one GPU they share it: what ranks cost, not what they gain
        bench_shape llama-3.2-1b $mesh --sequence 2048 -n 64 || failed=1
    done
    return $failed
}

step_transformers() {
    [ -z "$simulated" ] || skip "the simulated device is no device of PyTorch"
    need_device
    has python3 && python3 -c 'import torch, transformers' 2>/dev/null ||
        skip "no Python with torch and transformers"
    python3 tools/bench_transformers.py --output "$out/transformers.json"
}

# --- the report ----------------------------------------------------------------------------------

# rows FILE KEY...: of each flat object in "rows": [...], its values, with tabs between them
rows() {
    file=$1
    shift
    [ -s "$file" ] || return 0
    tr -d '\n' <"$file" | awk -v keys="$*" '
        function value(object, key) {
            if (!match(object, "\"" key "\" *: *(\"[^\"]*\"|[^,}]*)")) return ""
            object = substr(object, RSTART, RLENGTH)
            sub(/^"[^"]*" *: */, "", object)
            sub(/ *$/, "", object)
            gsub(/^"|"$/, "", object)
            return object == "null" ? "" : object
        }
        {
            if (!match($0, /"rows" *: *\[/)) exit
            n = split(substr($0, RSTART + RLENGTH), object, /} *,? */)
            m = split(keys, key, " ")
            for (i = 1; i <= n; i++) {
                if (object[i] !~ /{/) break
                line = value(object[i], key[1])
                for (k = 2; k <= m; k++) line = line "\t" value(object[i], key[k])
                print line
            }
        }'
}

# member FILE OBJECT KEY...: the same of one object of a result
member() {
    file=$1
    object=$2
    shift 2
    [ -s "$file" ] || return 0
    tr -d '\n' <"$file" | sed -n "s/.*\"$object\" *: *\({[^}]*}\).*/{\"rows\": [\1]}/p" >"$out/member.json"
    rows "$out/member.json" "$@"
    rm -f "$out/member.json"
}

# table HEAD DIGITS: tab-separated lines as a table of Markdown, numbers rounded
table() {
    awk -F '\t' -v head="$1" '
        NR == 1 {
            n = split(head, title, ",")
            line = "|"; rule = "|"
            for (i = 1; i <= n; i++) { line = line " " title[i] " |"; rule = rule " --- |" }
            print line; print rule
        }
        {
            line = "|"
            for (i = 1; i <= n; i++) {
                x = $i
                if (x ~ /^-?[0-9.]+([eE][-+]?[0-9]+)?$/)
                    x = x == int(x) ? sprintf("%d", x) : \
                        sprintf(x >= 1000 ? "%.0f" : x >= 10 ? "%.1f" : "%.3f", x)
                line = line " " x " |"
            }
            print line
        }
        END { if (NR == 0) print "Not measured." }'
}

# Shares of the limit that a first release aims at.
targets() {
    rows "$out/bench_models.json" what shape ratio | awk -F '\t' '
        BEGIN {
            want["decode", "llama-3-8b"] = 0.70
            want["decode", "qwen3-4b"] = 0.60
            want["decode", "llama-3.2-1b"] = 0.45
            want["prefill", "llama-3-8b"] = want["prefill", "qwen3-4b"] = 0.55
            want["prefill", "llama-3.2-1b"] = 0.55
        }
        ($1, $2) in want {
            print $1 " of " $2 "\t" want[$1, $2] "\t" $3 "\t" \
                ($3 + 0 >= want[$1, $2] ? "yes" : "**no**")
        }'
}

command_rows() {
    for file in "$out"/command_*.json; do
        [ -s "$file" ] || continue
        name=$(basename "$file" .json | sed 's/^command_//; s/_tp=/, tp=/')
        for part in prompt decode decode_unrecorded; do
            member "$file" $part tokens tokens_per_s limit_per_s ratio ratio_least ratio_most |
                awk -F '\t' -v name="$name" -v part=$part -v OFS='\t' \
                    '{ print name, part, $1, $2, $3 * 1e-9, $4, $5 ", " $6 }'
        done
    done
}

write_report() {
    name=$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | head -n 1)
    driver=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | head -n 1)
    [ -z "$simulated" ] || name="The simulated device, where figures mean nothing"
    echo "# ${name:-No GPU}"
    echo
    echo "$(grep -m 1 PRETTY_NAME /etc/os-release | cut -d '"' -f 2), $(nproc) cores," \
        "${driver:+driver $driver, }CUDA $(nvcc --version 2>/dev/null | grep -o 'release [0-9.]*' |
            cut -d ' ' -f 2), commit $(git log -1 --format=%h 2>/dev/null); bf16, one sequence." \
        "Limits are of the same run: copying on the device (bytes read and written) and one large" \
        "product."
    echo
    targets | table "target,aimed at,measured,met"
    printf '\n## Models, random weights\n\n'
    rows "$out/bench_models.json" what shape tokens us tokens_per_s figure limit ratio |
        table "what,shape,tokens,us,tok/s,GB/s or TFLOP/s,limit,ratio"
    printf '\n## dtensor bench\n\n'
    command_rows | table "run,what,tokens,tok/s,limit (GB/s or GFLOP/s),ratio,least and most"
    printf '\n## Kernels\n\n'
    rows "$out/bench_cuda.json" kernel of tokens us gbs copy_gbs copy_ratio tflops product_tflops \
        product_ratio | table "kernel,of,tokens,us,GB/s,copy,ratio,TFLOP/s,product,ratio"
    printf '\n## Transformers on the same GPU\n\n'
    rows "$out/transformers.json" what shape mode tokens us tokens_per_s error |
        table "what,shape,mode,tokens,us,tok/s,error"
    printf '\n## Steps\n\n'
    table "step,result,seconds" <"$out/steps.tsv"
}

step_report() {
    write_report >"$out/report.md"
}

if [ -n "$this_step" ]; then
    "step_$this_step"
    exit
fi

# --- one after the other -------------------------------------------------------------------------

begin=$(date +%s)
any_failed=0
touch "$out/steps.tsv"

# What a call does again is told anew.
note() {
    grep -v "^$1	" "$out/steps.tsv" >"$out/steps.part"
    printf '%s\t%s\t%s\n' "$1" "$2" "$3" >>"$out/steps.part"
    mv "$out/steps.part" "$out/steps.tsv"
    echo "$1: $2 ($3 s)"
}

# step NAME SECONDS: with its output in NAME.log
step() {
    case ",$only," in ,, | *",$1,"*) ;; *) return 0 ;; esac
    started=$(date +%s)
    limit=$((minutes * 60 - started + begin))
    [ "$limit" -le "$2" ] || limit=$2
    if [ "$limit" -le 0 ]; then
        note "$1" "skipped: the $minutes minutes are over" 0
        return 0
    fi
    timeout -k 10 "$limit" sh tools/first_gpu_run.sh --step "$1" --out "$out" --build "$build" \
        ${packages:+--packages "$packages"} ${simulated:+--simulated} >"$out/$1.log" 2>&1
    code=$?
    seconds=$(($(date +%s) - started))
    case $code in
    0) note "$1" ok "$seconds" ;;
    77) note "$1" "$(grep '^skipped' "$out/$1.log" | tail -n 1)" "$seconds" ;;
    124 | 137) note "$1" "stopped after $limit s, see $1.log" "$seconds" ;;
    *) note "$1" "failed with status $code, see $1.log" "$seconds" ;;
    esac
    case $code in 0 | 77) ;; *) any_failed=1 ;; esac
}

step machine 60
step packages 180
step build 480
step tests 240
step suites 300
step memcheck 300
step racecheck 300
step bench_cuda 120
step bench_models 180
step bench_command 240
step transformers 420
step_report
echo "report: $out/report.md"
exit $any_failed
