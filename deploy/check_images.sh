#!/usr/bin/env bash
# Runs the images of build_images.sh as compose does, without a Docker engine: the image's own user, command and
# environment, its root read-only, a tmpfs at /tmp. Classifies a photo, then runs COMMAND with TIDEGATE_URL set.
#
#   deploy/check_images.sh [COMMAND…]
#
# Needs buildah and root. Ports: GATEWAY_PORT (18080), and Triton's TRITON_PORT (18000) and the two above it.
# GATEWAY_IMAGE, TRITON_IMAGE: others than those that build_images.sh makes.
# WORKERS: processes of the gateway (2, so that the shared metrics need their folder).
set -euo pipefail
cd "$(dirname "$0")/.."

gateway=${GATEWAY_PORT:-18080}
triton=${TRITON_PORT:-18000}
logs=$(mktemp -d)
containers=()
processes=()

stop() {
  local code=$?
  ((${#processes[@]} == 0)) || kill "${processes[@]}" 2>/dev/null || true
  wait
  ((${#containers[@]} == 0)) || buildah rm "${containers[@]}" >/dev/null
  ((code == 0)) || tail -n 100 "$logs"/*.log
  rm -rf "$logs"
  exit "$code"
}
trap stop EXIT

# of IMAGE FIELD: the lines of a list in the image's configuration
of() { buildah inspect --type image --format "{{range .OCIv1.Config.$2}}{{println .}}{{end}}" "$1" | sed '/^$/d'; }

# start NAME IMAGE [VARIABLE=VALUE…]
start() {
  local name=$1 image=$2 container root user
  local -a environment command
  shift 2
  container=$(buildah from "$image")
  containers+=("$container")
  root=$(buildah mount "$container")
  user=$(buildah inspect --type image --format '{{.OCIv1.Config.User}}' "$image")
  readarray -t environment < <(of "$image" Env)
  readarray -t command < <(of "$image" Entrypoint && of "$image" Cmd)
  # shellcheck disable=SC2016  # the inner shell's own words
  unshare --mount --propagation private bash -euc '
    root=$1 user=$2
    shift 2
    mount --bind "$root" "$root"
    mount -o remount,bind,ro "$root"
    mount -t tmpfs tmpfs "$root/tmp"
    mount --rbind /proc "$root/proc"
    mount --rbind /dev "$root/dev"
    mount --rbind /sys "$root/sys"
    exec chroot --userspec="$user" "$root" env -i "$@"
  ' run "$root" "$user" "${environment[@]}" "$@" "${command[@]}" >"$logs/$name.log" 2>&1 &
  processes+=("$!")
  echo "$name: user $user, ${command[*]}"
}

# ready NAME URL: asks as the images' own health checks do
ready() {
  local start=$SECONDS
  until python3 deploy/healthcheck.py "$2" 2>"$logs/health"; do
    kill -0 "${processes[-1]}" 2>/dev/null || { echo "$1 has ended" >&2 && exit 1; }
    ((SECONDS - start < 120)) || { echo "$1 does not become ready" >&2 && exit 1; }
    sleep 0.2
  done
  echo "$1: ready after $((SECONDS - start)) s"
}

start triton "${TRITON_IMAGE:-localhost/tidegate-triton:cpu}" TIDEGATE_TRITON_HTTP_PORT="$triton" \
  TIDEGATE_TRITON_GRPC_PORT="$((triton + 1))" TIDEGATE_TRITON_METRICS_PORT="$((triton + 2))"
ready triton "http://127.0.0.1:$triton/v2/health/ready"
start gateway "${GATEWAY_IMAGE:-localhost/tidegate-gateway:dev}" TIDEGATE_PORT="$gateway" TIDEGATE_WORKERS="${WORKERS:-2}" \
  TIDEGATE_TRITON_URL="localhost:$((triton + 1))"
ready gateway "http://127.0.0.1:$gateway/readyz"

python3 - "http://127.0.0.1:$gateway/v1/classify" examples/photos/coffee.jpg <<'PYTHON'
import json, sys, urllib.request

request = urllib.request.Request(sys.argv[1], data=open(sys.argv[2], "rb").read())
with urllib.request.urlopen(request) as answer:
    (result,) = json.load(answer)["results"]
best = result["predictions"][0]
print(f"coffee.jpg: {best['label']} ({best['probability']:.2f})")
assert best["label"] == "espresso", best
PYTHON

if (($#)); then
  TIDEGATE_URL="http://127.0.0.1:$gateway" "$@"
fi

# Both end well and in time when they are told to.
start=$SECONDS
for index in 1 0; do
  kill "${processes[index]}"
  wait "${processes[index]}" || { echo "exit code $? after SIGTERM" >&2 && exit 1; }
done
processes=()
echo "stopped in $((SECONDS - start)) s"
