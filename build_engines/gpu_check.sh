#!/usr/bin/env bash
# What only a machine with a GPU can show: real TensorRT builds, judged by the gate and measured. Under 8 minutes.
#
#   build_engines/gpu_check.sh [FOLDER]      logs and certificates go to FOLDER, else to $OUT, else to ./gpu_check
#
# Run it in a TensorRT container (nvcr.io/nvidia/tensorrt:26.08-py3, with pip install '.[local,build,tensorrt]') or in
# an environment with those extras. What it finds in the environment:
#   PYTHON                    the interpreter with the builder (default: python3)
#   TIDEGATE_MODELOPT_PYTHON  one with ModelOpt (targets/modelopt-requirements.txt): without it only FP32 is built
#   PHOTOS                    a folder of a few hundred photos, to calibrate with one half and judge with the other:
#                             without it INT8 is left out, and the gate takes its built-in pictures
# Prints a line for each check; exits with 1 when one failed, or when there is no GPU to check.
set -euo pipefail
cd "$(dirname "$0")/.."

out=${1:-${OUT:-gpu_check}}
python=${PYTHON:-python3}
photos=${PHOTOS:-}
modelopt=${TIDEGATE_MODELOPT_PYTHON:-}
seconds=460

mkdir -p "$out"
out=$(cd "$out" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0
ok=0 # whether the last check passed

say() { printf '%-8s %-18s %s\n' "$1" "$2" "${3:-}" | tee -a "$out/summary.txt"; }

# check NAME COMMAND…: runs it in what is left of the time, with its output in NAME.log.
check() {
  local name=$1 start=$SECONDS left=$((seconds - SECONDS))
  shift
  ok=0
  if ((left < 20)); then
    say FAILED "$name" "no time left of $seconds s"
    failed=1
  elif timeout "$left" "$@" >"$out/$name.log" 2>&1; then
    say passed "$name" "$((SECONDS - start)) s"
    ok=1
  else
    say FAILED "$name" "$(tail -n 1 "$out/$name.log") (whole log: $out/$name.log)"
    failed=1
  fi
}

# engine NAME SOURCE PRECISION [OPTION…]: builds, judges and measures one engine, then reads its certificate.
engine() {
  local name=$1 source=$2 precision=$3
  shift 3
  check "$name" "$python" -m build_engines "$source" --target tensorrt --precision "$precision" \
    --repository "$work/repository" --model "$name" --work "$work/stages" "$@"
  ((ok)) || return 0
  check "$name-certificate" "$python" - "$work/repository" "$name" "$precision" "$out" <<'PYTHON'
import json, shutil, sys
from pathlib import Path

repository, name, precision, out = Path(sys.argv[1]), *sys.argv[2:4], Path(sys.argv[4])
(path,) = repository.glob(f"{name}_*/*/certificate.json")
certificate = json.loads(path.read_text())
shutil.copy(path, out / f"{name}.json")
layers = certificate["layers"]
assert 2 * layers.get(precision, 0) >= sum(layers.values()) > 0, f"{precision} was asked for and the layers are {layers}"
assert (path.parent / "model.plan").stat().st_size > 100_000, "the plan is too small to be one"
print(json.dumps({key: certificate[key] for key in ("layers", "device", "agreement", "performance")}, indent=1))
PYTHON
}

: >"$out/summary.txt"
check gpu "$python" -c '
import json
from build_engines.targets.tensorrt import TensorRT
print(json.dumps(TensorRT().identity("fp32"), indent=1))
'
if ((failed)); then
  exit 1
fi

pictures=()
calibration=()
if [ -n "$photos" ]; then
  pictures=(--images "$photos" --part 2/2)
  calibration=(--calibration "$photos" --calibration-part 1/2)
fi

engine lite0_fp32 efficientnet_lite0 fp32 "${pictures[@]}"
if [ -z "$modelopt" ]; then
  say skipped lite0_fp16 "TIDEGATE_MODELOPT_PYTHON is not set"
  say skipped lite0_int8 "TIDEGATE_MODELOPT_PYTHON is not set"
else
  engine lite0_fp16 efficientnet_lite0 fp16 "${pictures[@]}"
  if [ -n "$photos" ]; then
    engine lite0_int8 efficientnet_lite0 int8 "${pictures[@]}" "${calibration[@]}"
  else
    say skipped lite0_int8 "PHOTOS is not set: INT8 is never calibrated on anything else"
  fi
  if "$python" -c 'import torch, torchvision' 2>/dev/null; then
    engine resnet50_fp16 torchvision/resnet50 fp16 --weights random
  else
    say skipped resnet50_fp16 "torch and torchvision are not here"
  fi
fi

exit "$failed"
