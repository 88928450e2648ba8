//! How messages look on the wire.
