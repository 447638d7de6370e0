#!/usr/bin/env bash
# Versions that the registry signs, verified by the OpenSSF's model-signing (PyPI), offline: good ones are accepted;
# another key, a changed file, an added file and a changed signature are refused.
# Needs Python 3.10 or newer; the package comes into a temporary folder.
set -euo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-python3}
cargo=${CARGO:-cargo}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$python" -m venv "$work/venv"
"$work/venv/bin/python" -m pip install -q -r scripts/requirements-signing.txt
REGISTRY_SIGNED_OUT="$work/signed" "$cargo" test --locked -q -p registry --test suite -- \
    a_pulled_folder_is_a_signed_model_of_the_openssf

verify() { # FOLDER KEY
    case $2 in
    *ed25519*) "$work/venv/bin/python" scripts/model_signing_ed25519.py "$1" --public_key "$2" ;;
    *) "$work/venv/bin/model_signing" verify key "$1" --signature "$1/model.sig" --public_key "$2" ;;
    esac
}
accepted() {
    verify "$@" >"$work/out" 2>&1 || { echo "$kind: a good version is refused:"; cat "$work/out"; exit 1; }
}
refused() { # WHAT FOLDER KEY
    local what=$1
    shift
    if verify "$@" >"$work/out" 2>&1; then
        echo "$kind: $what is accepted"
        exit 1
    fi
    # Refused by the verifier, not for a program that does not start.
    grep -q "Verification failed with error" "$work/out" || { cat "$work/out"; exit 1; }
}
for kind in ecdsa-p256 ed25519; do
    good="$work/signed/$kind" key="$work/signed/$kind.pub"
    accepted "$good" "$key"
    refused "another key" "$good" "$work/signed/$kind.other.pub"
    cp -r "$good" "$work/bad"
    printf x >>"$work/bad/source.txt"
    refused "a changed file" "$work/bad" "$key"
    cp "$good/source.txt" "$work/bad/source.txt"
    touch "$work/bad/added.txt"
    refused "an added file" "$work/bad" "$key"
    rm "$work/bad/added.txt"
    accepted "$work/bad" "$key"
    "$python" - "$work/bad/model.sig" <<'PY'
import base64, json, sys
bundle = json.load(open(sys.argv[1]))
envelope = bundle["dsseEnvelope"]
payload = base64.b64decode(envelope["payload"]).replace(b'"licence":"CC0-1.0"', b'"licence":"CC1-1.0"')
envelope["payload"] = base64.b64encode(payload).decode()
json.dump(bundle, open(sys.argv[1], "w"))
PY
    refused "a changed manifest" "$work/bad" "$key"
    rm -r "$work/bad"
    echo "$kind: accepted as signed, refused with another key, a changed or added file, a changed manifest"
done
