//! Every bound of the system in one place (I12). The documents list these under the same names.

/// The largest payload of a record, in bytes: 1 MiB.
pub const MAX_RECORD_BYTES: usize = 1 << 20;
/// The most records under one token.
pub const MAX_RECORDS_PER_TOKEN: usize = 4096;
/// The most bytes of records, tags included, under one token: 4 MiB.
pub const MAX_TOKEN_BYTES: usize = 4 << 20;
/// The most tags of a record.
pub const MAX_TAGS: usize = 8;
/// The longest tag, in bytes.
pub const MAX_TAG_BYTES: usize = 64;
/// The longest name of a color, in bytes of UTF-8.
pub const MAX_COLOR_NAME_BYTES: usize = 256;
/// The most colors of a cluster.
pub const MAX_COLORS: usize = 1 << 20;
/// The largest frame on the wire, header excluded: 8 MiB.
pub const MAX_FRAME_BYTES: usize = 8 << 20;
/// W: the most tokens that a session may have open at once.
pub const TOKEN_WINDOW: u64 = 4096;
/// The most sessions of a shard.
pub const MAX_SESSIONS: usize = 1024;
/// The most bytes of records that a replica holds staged: 64 MiB.
pub const MAX_STAGED_BYTES: u64 = 64 << 20;
/// The most tokens that a replica holds staged.
pub const MAX_STAGED_TOKENS: usize = 65_536;
/// The most subscriptions of one connection.
pub const MAX_SUBSCRIPTIONS_PER_CONNECTION: usize = 256;
/// The most reads of one connection that wait for a number to settle.
pub const MAX_WAITING_READS_PER_CONNECTION: usize = 4096;
/// The most connections that a node serves at once.
pub const MAX_CONNECTIONS: usize = 1024;
/// Bytes that may wait to be sent to one client before the node stops reading from it: 4 MiB.
pub const MAX_OUTBOUND_BYTES: usize = 4 << 20;
/// The credit that a subscriber may hold at most, in bytes: 4 MiB.
pub const MAX_CREDIT_BYTES: u64 = 4 << 20;
/// Idle time after which the leaf closes a session, in microseconds: 15 minutes.
pub const SESSION_IDLE_MICROS: u64 = 15 * 60 * 1_000_000;
/// Idle time after which the leaf may close a session to make room for another, in microseconds: 1 minute.
pub const SESSION_SPARE_MICROS: u64 = 60 * 1_000_000;
/// How long the leaf waits for the last members to report a token before it has them pull it, in microseconds: 50 ms.
pub const COMPLETION_DELAY_MICROS: u64 = 50_000;
/// The default bytes of one segment of a replica's log: 16 MiB.
pub const SEGMENT_BYTES: u64 = 16 << 20;
/// The default limit of a replica's area: 4 GiB.
pub const AREA_LIMIT_BYTES: u64 = 4 << 30;
/// The default bytes of memory that a replica caches records in that were read: 32 MiB.
pub const CACHE_BYTES: u64 = 32 << 20;
/// The default bytes of memory that a replica keeps indexes of SSD files in: 32 MiB.
pub const INDEX_CACHE_BYTES: u64 = 32 << 20;
/// MiB a second that are read of each replica's records to find damage, unless told otherwise.
pub const SCRUB_MIB_S: u32 = 8;
/// The port that `flexlog up` listens on unless told otherwise.
pub const DEFAULT_PORT: u16 = 7480;
/// A member that owes an answer and makes no progress for this long is dropped from the view, in microseconds, unless the
/// operator says otherwise.
pub const REPLICA_TIMEOUT_MICROS: u64 = 1_000_000;
/// A replica that is being taken in and is not heard of for this long is given up, in microseconds.
pub const LEARNER_TIMEOUT_MICROS: u64 = 5_000_000;
/// How long a replica that was dropped or given up is left alone at first, in microseconds; twice as long each time.
pub const ADD_PAUSE_MICROS: u64 = 100_000;
/// The longest that it is left alone.
pub const MAX_ADD_PAUSE_MICROS: u64 = 30_000_000;
