//! The ordering tree: who hands out numbers, and who makes them facts.
