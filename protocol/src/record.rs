//! Records and the appends that carry them.

use bytes::Bytes;

use crate::checksum::crc32c_append;
use crate::ids::{Color, SeqNum, Token};
use crate::limits;

/// Names a sub-stream of a color: at most [`limits::MAX_TAG_BYTES`] bytes.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Tag(Bytes);

impl Tag {
    /// A tag of these bytes.
    ///
    /// # Errors
    /// `TagTooLong` above [`limits::MAX_TAG_BYTES`].
    pub fn new(bytes: impl Into<Bytes>) -> Result<Self, RecordError> {
        let bytes = bytes.into();
        if bytes.len() > limits::MAX_TAG_BYTES {
            return Err(RecordError::TagTooLong { bytes: bytes.len() });
        }
        Ok(Self(bytes))
    }

    /// Its bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &Bytes {
        &self.0
    }
}

/// Why a record or an append cannot be accepted by anyone: it breaks a bound that all share.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// The payload is above [`limits::MAX_RECORD_BYTES`].
    #[error(
        "the record has {bytes} bytes, the limit is {}: split it, or store it elsewhere and append its name",
        limits::MAX_RECORD_BYTES
    )]
    RecordTooLarge {
        /// Bytes of the payload.
        bytes: usize,
    },
    /// A tag is above [`limits::MAX_TAG_BYTES`].
    #[error("a tag has {bytes} bytes, the limit is {}", limits::MAX_TAG_BYTES)]
    TagTooLong {
        /// Bytes of the tag.
        bytes: usize,
    },
    /// A record has more than [`limits::MAX_TAGS`] tags.
    #[error("a record has {tags} tags, the limit is {}", limits::MAX_TAGS)]
    TooManyTags {
        /// Tags of the record.
        tags: usize,
    },
    /// An append has no record, or more than [`limits::MAX_RECORDS_PER_TOKEN`].
    #[error("an append has {records} records, it takes 1 to {}", limits::MAX_RECORDS_PER_TOKEN)]
    RecordCount {
        /// Records of the append.
        records: usize,
    },
    /// An append's records together are above [`limits::MAX_TOKEN_BYTES`].
    #[error(
        "an append's records have {bytes} bytes together, the limit is {}: use several appends",
        limits::MAX_TOKEN_BYTES
    )]
    AppendTooLarge {
        /// Bytes of the records, tags included.
        bytes: usize,
    },
    /// The checksum that came with a record is not that of its bytes.
    #[error("a record's checksum does not match its bytes: it was damaged on the way, send it again")]
    Damaged,
}

/// What a client appends: a payload and the tags it can be found under.
///
/// The checksum is made once, by whoever makes the record, and stays with it over the wire, on the media and back to
/// the reader, so damage anywhere on that way shows.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Record {
    tags: Vec<Tag>,
    payload: Bytes,
    crc: u32,
}

impl Record {
    /// A record of this payload, without tags.
    ///
    /// # Errors
    /// `RecordTooLarge` above [`limits::MAX_RECORD_BYTES`].
    pub fn new(payload: impl Into<Bytes>) -> Result<Self, RecordError> {
        Self::with_tags(payload, Vec::new())
    }

    /// A record of this payload, found under `tags` too.
    ///
    /// # Errors
    /// `RecordTooLarge` or `TooManyTags` above [`limits::MAX_RECORD_BYTES`] and [`limits::MAX_TAGS`].
    pub fn with_tags(payload: impl Into<Bytes>, tags: Vec<Tag>) -> Result<Self, RecordError> {
        let payload = payload.into();
        if payload.len() > limits::MAX_RECORD_BYTES {
            return Err(RecordError::RecordTooLarge { bytes: payload.len() });
        }
        if tags.len() > limits::MAX_TAGS {
            return Err(RecordError::TooManyTags { tags: tags.len() });
        }
        let crc = Self::checksum(&tags, &payload);
        Ok(Self { tags, payload, crc })
    }

    /// A record that came with a checksum, from the wire or from the media.
    ///
    /// # Errors
    /// As [`Record::with_tags`], and `Damaged` when `crc` is not the checksum of these bytes.
    pub fn checked(payload: Bytes, tags: Vec<Tag>, crc: u32) -> Result<Self, RecordError> {
        let record = Self::with_tags(payload, tags)?;
        if record.crc == crc { Ok(record) } else { Err(RecordError::Damaged) }
    }

    /// CRC32C over the record's encoded form: the number of tags, each tag's length and bytes, then the payload.
    fn checksum(tags: &[Tag], payload: &[u8]) -> u32 {
        let mut crc = crc32c_append(0, &[tags.len() as u8]);
        for tag in tags {
            crc = crc32c_append(crc, &[tag.0.len() as u8]);
            crc = crc32c_append(crc, &tag.0);
        }
        crc32c_append(crc, payload)
    }

    /// What the client wrote.
    #[must_use]
    pub fn payload(&self) -> &Bytes {
        &self.payload
    }

    /// The payload by value.
    #[must_use]
    pub fn into_payload(self) -> Bytes {
        self.payload
    }

    /// The sub-streams that the record belongs to.
    #[must_use]
    pub fn tags(&self) -> &[Tag] {
        &self.tags
    }

    /// CRC32C of the record's encoded form.
    #[must_use]
    pub fn crc(&self) -> u32 {
        self.crc
    }

    /// The same record in memory of its own. One that was taken out of a larger buffer keeps all of that in memory.
    #[must_use]
    pub fn detached(&self) -> Self {
        let tags = self.tags.iter().map(|tag| Tag(Bytes::copy_from_slice(&tag.0))).collect();
        Self { tags, payload: Bytes::copy_from_slice(&self.payload), crc: self.crc }
    }

    /// Bytes of the encoded form: 1, then 1 + length for each tag, then the payload.
    #[must_use]
    pub fn encoded_len(&self) -> usize {
        1 + self.tags.iter().map(|tag| 1 + tag.0.len()).sum::<usize>() + self.payload.len()
    }
}

/// An append counts only if the last number of `tag` in the color is still `last`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Condition {
    /// The sub-stream that is looked at.
    pub tag: Tag,
    /// Its last number as the client knows it; `None` for a tag never used.
    pub last: Option<SeqNum>,
}

/// Records that a client sends under one token; they get contiguous numbers of one epoch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Append {
    token: Token,
    color: Color,
    condition: Option<Condition>,
    records: Vec<Record>,
    digest: u64,
}

impl Append {
    /// The records of one token.
    ///
    /// # Errors
    /// `RecordCount` or `AppendTooLarge` outside [`limits::MAX_RECORDS_PER_TOKEN`] and [`limits::MAX_TOKEN_BYTES`].
    pub fn new(
        token: Token,
        color: Color,
        condition: Option<Condition>,
        records: Vec<Record>,
    ) -> Result<Self, RecordError> {
        if records.is_empty() || records.len() > limits::MAX_RECORDS_PER_TOKEN {
            return Err(RecordError::RecordCount { records: records.len() });
        }
        let bytes = records.iter().map(Record::encoded_len).sum();
        if bytes > limits::MAX_TOKEN_BYTES {
            return Err(RecordError::AppendTooLarge { bytes });
        }
        let digest = digest(color, condition.as_ref(), &records);
        Ok(Self { token, color, condition, records, digest })
    }

    /// The name of this append.
    #[must_use]
    pub fn token(&self) -> Token {
        self.token
    }

    /// The log it goes to.
    #[must_use]
    pub fn color(&self) -> Color {
        self.color
    }

    /// What must hold for it to count.
    #[must_use]
    pub fn condition(&self) -> Option<&Condition> {
        self.condition.as_ref()
    }

    /// Its records, 1 to [`limits::MAX_RECORDS_PER_TOKEN`].
    #[must_use]
    pub fn records(&self) -> &[Record] {
        &self.records
    }

    /// How many numbers it takes.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.records.len() as u32
    }

    /// Tells apart two appends that came under one token: over color, condition, and each record's length and checksum.
    #[must_use]
    pub fn digest(&self) -> u64 {
        self.digest
    }

    /// Bytes of all its records in encoded form.
    #[must_use]
    pub fn encoded_len(&self) -> usize {
        self.records.iter().map(Record::encoded_len).sum()
    }
}

fn digest(color: Color, condition: Option<&Condition>, records: &[Record]) -> u64 {
    // The multiplier is that of the 64-bit FNV-1a hash, taken a word at a time: cheap, and this guards against
    // mistakes, not against forgery.
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    let mut mix = |word: u64| {
        hash = (hash ^ word).wrapping_mul(0x0000_0100_0000_01b3);
        hash ^= hash >> 32;
    };
    mix(color.0);
    if let Some(condition) = condition {
        mix(u64::from(crc32c_append(1, condition.tag.as_bytes())));
        mix(condition.last.map_or(u64::MAX, SeqNum::to_raw));
    }
    for record in records {
        mix((record.encoded_len() as u64) << 32 | u64::from(record.crc));
    }
    hash
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{Epoch, Lsn, SessionId, ShardId};

    fn token() -> Token {
        Token { shard: ShardId(0), session: SessionId { epoch: Epoch(1), lsn: Lsn(2) }, seq: 3 }
    }

    fn append(color: u64, payloads: &[&'static [u8]]) -> Append {
        let records = payloads.iter().map(|p| Record::new(*p).unwrap()).collect();
        Append::new(token(), Color(color), None, records).unwrap()
    }

    #[test]
    fn sizes_are_bounded_and_empty_payloads_are_not_refused() {
        assert!(Record::new(Bytes::new()).is_ok());
        assert!(Record::new(vec![0; limits::MAX_RECORD_BYTES]).is_ok());
        assert_eq!(
            Record::new(vec![0; limits::MAX_RECORD_BYTES + 1]),
            Err(RecordError::RecordTooLarge { bytes: limits::MAX_RECORD_BYTES + 1 })
        );
        assert_eq!(Append::new(token(), Color(1), None, vec![]), Err(RecordError::RecordCount { records: 0 }));
        let big = Record::new(vec![0; limits::MAX_RECORD_BYTES]).unwrap();
        assert!(matches!(Append::new(token(), Color(1), None, vec![big; 4]), Err(RecordError::AppendTooLarge { .. })));
    }

    #[test]
    fn a_damaged_record_is_refused() {
        let tags = vec![Tag::new("a").unwrap()];
        let record = Record::with_tags("payload", tags.clone()).unwrap();
        assert!(Record::checked("payload".into(), tags.clone(), record.crc()).is_ok());
        assert_eq!(Record::checked("Payload".into(), tags, record.crc()), Err(RecordError::Damaged));
        assert_eq!(Record::checked("payload".into(), vec![], record.crc()), Err(RecordError::Damaged));
    }

    #[test]
    fn the_digest_tells_appends_apart() {
        let one = append(1, &[b"a", b"b"]).digest();
        assert_eq!(one, append(1, &[b"a", b"b"]).digest());
        for other in [append(2, &[b"a", b"b"]), append(1, &[b"b", b"a"]), append(1, &[b"ab"]), append(1, &[b"a"])] {
            assert_ne!(one, other.digest());
        }
        let condition = Some(Condition { tag: Tag::new("t").unwrap(), last: None });
        let records = vec![Record::new("a").unwrap(), Record::new("b").unwrap()];
        assert_ne!(one, Append::new(token(), Color(1), condition, records).unwrap().digest());
    }
}
