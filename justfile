# What .ci/run does, step by step. `just` itself is optional: every recipe is one command.

# Everything, as before a change is kept.
all:
    .ci/run

format:
    cargo fmt --all --check

lint:
    cargo clippy --workspace --all-targets -- -D warnings

docs:
    RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps

test:
    cargo test

build:
    cargo build --release

# The release binary as a user meets it.
drive: build
    ci/drive.sh "${CARGO_TARGET_DIR:-target}/release/flexlog"
