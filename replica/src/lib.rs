//! A member of a shard: staged records, the shard log, settled numbers, and those who read them.
