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

# The same two for the device that needs libpmem2: apt-get install libpmem2-dev pkg-config
lint-pmem2:
    cargo clippy --workspace --all-targets --features flexlog-node/pmem2,bench/pmem2 -- -D warnings

test-pmem2:
    cargo test -p flexlog-storage-pm --features pmem2 --lib --test devices

# The same three for the metadata of clusters of several processes: apt-get install protobuf-compiler etcd-server
lint-etcd:
    cargo clippy -p flexlog-tree-config --all-targets --features etcd,served -- -D warnings

docs-etcd:
    RUSTDOCFLAGS="-D warnings" cargo doc -p flexlog-tree-config --no-deps --features etcd,served

test-etcd:
    cargo test -p flexlog-tree-config --features etcd,served
    cargo test -p flexlog-node --features etcd --test order --test failover

# The simulator, and the protocol's models in full.
simulate seeds="30000":
    cargo run --release -p flexlog-sim -- --seeds {{seeds}}
    cargo run --release -p flexlog-model

# Processes that are killed, stopped, cut off and replaced for so many seconds.
chaos seconds="300":
    ci/chaos {{seconds}}

build:
    cargo build --release

# The release binary as a user meets it.
drive: build
    ci/drive.sh "${CARGO_TARGET_DIR:-target}/release/flexlog"
