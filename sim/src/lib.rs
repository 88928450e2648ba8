//! The whole cluster under a seeded scheduler, on devices that lose what was not fenced.
