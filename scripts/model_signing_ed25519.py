#!/usr/bin/env python3
"""Verifies a pulled version with the OpenSSF's own library and an Ed25519 key.

`model_signing verify key` (1.1.1) takes elliptic-curve keys only. Everything but the last step is the library's here:
reading the bundle, the bytes that are signed, the statement, the hashes of the files and their comparison.

Example: model_signing_ed25519.py FOLDER --public_key alice.pub
"""
import argparse
import hashlib
import pathlib
import sys

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from model_signing import verifying
from model_signing._signing import sign_sigstore_pb as sigstore_pb


class Verifier(sigstore_pb.Verifier):
    def __init__(self, path):
        self.key = serialization.load_pem_public_key(path.read_bytes())
        if not isinstance(self.key, Ed25519PublicKey):
            raise ValueError(f"{path} is not an Ed25519 key; use `model_signing verify key`")

    def _verify_bundle(self, bundle):
        pem = self.key.public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
        if bundle.verification_material.public_key.hint != hashlib.sha256(pem).hexdigest():
            raise ValueError("the bundle names another key")
        envelope = bundle.dsse_envelope
        try:
            self.key.verify(envelope.signatures[0].sig, sigstore_pb.pae(envelope.payload))
        except InvalidSignature:
            raise ValueError("the signature is not that of this key") from None
        return envelope.payload_type, envelope.payload


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--public_key", type=pathlib.Path, required=True)
    arguments = parser.parse_args()
    config = verifying.Config()
    try:
        config._verifier = Verifier(arguments.public_key)
        config.verify(arguments.folder, arguments.folder / "model.sig")
    except (ValueError, OSError) as error:
        sys.exit(f"Verification failed with error: {error}")
    print("Verification succeeded")


main()
