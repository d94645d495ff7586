#!/usr/bin/env bash
# Builds an engine from a new checkpoint, lets the gate judge it, and stages it without serving it (recertify.yml).
#
#   .github/scripts/recertify.sh CHECKPOINT OUT
#
# CHECKPOINT is a folder with SHA256SUMS over all its files:
#   weights.safetensors or weights.pth (a state dict); either is read without running anything in it
#   labels.txt, preprocess.json        optional: the source's own, where they are missing
#   judge.tar.gz, calibrate.tar.gz     optional: photos, labelled or not; without the first the gate has 33 of its own
# OUT/model_repository may hold the repository of before: versions are numbered on from there.
# Environment: SOURCE (a network's name), TARGET, PRECISION (or empty), PYTHON (default: python3).
# Writes OUT/version, OUT/certificate.json and OUT/report.html. Fails when the gate refuses.
set -euo pipefail

checkpoint=$1
out=$2
python=${PYTHON:-python3}
die() {
  echo "recertify: $1" >&2
  exit 1
}

mkdir -p "$out"
rm -f "$out/version" "$out/certificate.json" "$out/report.html"
[[ ${SOURCE:?} =~ ^[A-Za-z0-9][A-Za-z0-9_./-]*$ ]] || die "SOURCE must be a network's name"
[[ $SOURCE != *.pt && $SOURCE != *.pt2 ]] || die "a whole program can run code: name a network, and give its weights"
[[ -f $checkpoint/SHA256SUMS ]] || die "the checkpoint has no SHA256SUMS"
(cd "$checkpoint" && sha256sum --check --strict --quiet SHA256SUMS) || die "a file is not the one in SHA256SUMS"
for file in "$checkpoint"/*; do
  name=$(basename "$file")
  [[ $name == SHA256SUMS ]] || grep -qE "^[0-9a-f]{64} [ *]${name//./\\.}$" "$checkpoint/SHA256SUMS" \
    || die "$name is not in SHA256SUMS"
done

options=(--target "${TARGET:?}" --repository "$out/model_repository" --work "$out/stages" --stage)
[[ -z ${PRECISION:-} ]] || options+=(--precision "$PRECISION")
for name in weights.safetensors weights.pth; do
  [[ ! -f $checkpoint/$name ]] || options+=(--weights "$checkpoint/$name")
done
[[ ! -f $checkpoint/labels.txt ]] || options+=(--labels "$checkpoint/labels.txt")
[[ ! -f $checkpoint/preprocess.json ]] || options+=(--preprocess "$checkpoint/preprocess.json")
photos() { # photos NAME OPTION
  [[ -f $checkpoint/$1.tar.gz ]] || return 0
  mkdir -p "$out/$1"
  tar -xzf "$checkpoint/$1.tar.gz" -C "$out/$1" --no-same-owner --no-same-permissions
  options+=("$2" "$out/$1")
}
photos judge --images
photos calibrate --calibration

status=0
"$python" -m build_engines "$SOURCE" "${options[@]}" || status=$?
cp "$out"/stages/*/report.html "$out/report.html" 2>/dev/null || true # there is one when the gate refused
((status == 0)) || exit "$status"
certificate=$(ls -t "$out"/model_repository/*/[0-9]*/certificate.json | head -n 1)
cp "$certificate" "$out/certificate.json"
basename "$(dirname "$certificate")" >"$out/version"
