#!/usr/bin/env bash
# Builds the images that need no NVIDIA base, on a machine without a Docker engine: the gateway and the CPU's Triton.
#
#   deploy/build_images.sh              on the pinned base of the Dockerfiles
#   deploy/build_images.sh IMAGE        on another base, such as one of a registry of your own
#   deploy/build_images.sh debootstrap  on a Debian made here: for a machine that cannot pull images
#
# Needs buildah (for the last: debootstrap, too) and root. MIRROR: where debootstrap gets Debian from. BUILD_OPTIONS:
# more words for `buildah bud`, such as "-v /etc/ssl/certs:/etc/ssl/certs:ro" behind a proxy that has its own authority.
set -euo pipefail
cd "$(dirname "$0")/.."

base=${1:-}
read -ra options <<<"${BUILD_OPTIONS:-}"

# What the slim Python image holds of Debian's own Python: the interpreter, pip, and its shared library for Triton.
debian_base() {
  local image=localhost/python-base:bookworm folder container
  if ! buildah inspect --type image "$image" >/dev/null 2>&1; then
    folder=$(mktemp -d)
    debootstrap --variant=minbase --include=ca-certificates,libpython3.11,python3,python3-pip,python3-venv \
      bookworm "$folder" ${MIRROR:+"$MIRROR"} >&2
    rm -rf "$folder"/var/cache/apt/archives/*.deb "$folder"/var/lib/apt/lists/*
    container=$(buildah from scratch)
    buildah add --quiet "$container" "$folder" / >&2
    buildah config --env PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "$container"
    buildah commit --quiet --rm "$container" "$image" >&2
    rm -rf "$folder"
  fi
  echo "$image"
}

# build NAME FILE [OPTION…]
build() {
  local name=$1 file=$2 start=$SECONDS
  shift 2
  # The format: OCI's own has no place for a health check.
  buildah bud --quiet --layers --format docker --network host --isolation chroot "${options[@]}" "$@" \
    ${base:+--build-arg "BASE=$base"} --tag "$name" --file "$file" .
  echo "$name: $((SECONDS - start)) s, $(buildah images --format '{{.Size}}' "$name")"
}

if [ "$base" = debootstrap ]; then
  base=$(debian_base)
fi
build localhost/tidegate-gateway:dev Dockerfile.gateway
build localhost/tidegate-triton:cpu Dockerfile.triton --target cpu
