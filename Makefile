# Two commands matter: `make gates` and `make test`. Both install what is missing (scripts/setup.sh).
.DEFAULT_GOAL := help
CARGO ?= cargo
# One seed for the property tests, so that a run can be repeated; set another to explore.
export PROPTEST_RNG_SEED ?= 20261129

help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1|/' | column -t -s '|'

setup: ## Install clang, cmake and ninja where they are missing
	@scripts/setup.sh

gates: setup ## Build and run the gate suite on the embedded model (exit code: docs/formats/exit-codes.md)
	$(CARGO) run --release --locked -p harness -- gates $(GATES)

test: setup ## Format, lints, every test, and the gates with their planted faults
	$(CARGO) fmt --all -- --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	@for own in fuzz parity scripts/bindings; do $(CARGO) metadata --locked --format-version 1 --manifest-path $$own/Cargo.toml > /dev/null || exit 1; done
	$(CARGO) test --workspace --locked

check: setup ## Fast lane: format, lints, walls between the crates, the unit tests of the crates without the engine
	$(CARGO) fmt --all -- --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	$(CARGO) test --locked -p harness --test walls --test module_circles
	$(CARGO) test --locked -p files -p kv -p gguf -p grammar -p cartridge -p agent -p reference

times: setup ## The tests with what each took, the slowest last (needs cargo-nextest)
	$(CARGO) nextest run --workspace --locked

deny: ## Licences, advisories, duplicate versions (needs cargo-deny; deny.toml)
	$(CARGO) deny --locked check

nightly: test shortages bindings docs consumers msrv sanitize valgrind ## Everything in `test`, and what takes longer
	$(MAKE) fuzz FUZZ_SECONDS=60
	$(MAKE) sweep

sweep: setup ## All gates with their planted faults on SWEEP_MODELS random models (300), then on small presets
	SWEEP_MODELS=$${SWEEP_MODELS:-300} $(CARGO) test --locked -p harness --test sweep -- --include-ignored --nocapture

bench: setup ## Speed of the embedded model; `harness bench --help` for other models, cartridges and grammars
	$(CARGO) run --release --locked -p harness -- bench $(BENCH)

reference: ## Rebuild gate 2's reference with HuggingFace transformers (Python; docs/how-to/reference.md)
	scripts/reference.sh

tokenizer-parity: setup ## Compare the engine's token ids with HuggingFace tokenizers on Llama 3's vocabulary (npm)
	scripts/tokenizer_parity.sh

hostile: setup ## Feed thousands of hostile inputs, each in a process of its own; shows the counts
	$(CARGO) test --locked -p harness --test hostile -- --nocapture

shortages: setup ## Every command under limits on memory, threads, descriptors, stack and file size; signals at random moments
	$(CARGO) test --release --locked -p harness --test hostile -- --ignored --nocapture --test-threads=1 \
		every_command_under_every_limit signals_at_any_moment_of_any_gate

fuzz: setup ## Fuzz every reader of foreign files for FUZZ_SECONDS each (docs/how-to/hostile.md)
	fuzz/run.sh

sanitize: setup ## The wrapper's, the engine's and the hostile tests over an engine built with AddressSanitizer and UBSan
	scripts/memory_checks.sh sanitize

valgrind: setup ## The wrapper's tests under valgrind
	scripts/memory_checks.sh valgrind

bindings: ## Compare the committed bindings with what the pinned headers give (scripts/bindings.sh makes them anew)
	@scripts/setup.sh --bindings
	scripts/bindings.sh --check

docs: ## API documentation of the two engine crates; needs no clang and no cmake (target/docs/doc)
	DOCS_RS=1 RUSTDOCFLAGS="-D warnings -A rustdoc::private_intra_doc_links" \
		$(CARGO) doc --locked --no-deps -p bitnet-sys -p bitnet-rs --target-dir target/docs

consumers: setup ## Use bitnet-rs as a git, a path and a vendored dependency: builds the engine three times
	scripts/consumers.sh

clients: setup ## The registry with others' software (PyPI): S3 servers, and the OpenSSF's verifier of signatures
	scripts/registry_s3.sh
	scripts/registry_signing.sh

msrv: setup ## Check the Rust version that Cargo.toml claims, as well as can be had here
	scripts/msrv.sh

.PHONY: help setup gates test check times deny nightly sweep bench reference tokenizer-parity hostile shortages fuzz sanitize valgrind bindings docs consumers clients msrv
