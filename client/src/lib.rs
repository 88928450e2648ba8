//! The FlexLog client: append, read, tail, subscribe and trim from Rust.
