//! The store of one replica: a log of checksummed entries in persistent memory or on a plain disk.
