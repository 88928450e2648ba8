//! The flexlog command.

fn main() {}
