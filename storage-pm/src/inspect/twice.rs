//! Numbers that are in a store twice: a record that is copied again, or moved to an SSD file and copied then, is there as
//! often as it was written. All of these must be the same record.

use std::collections::BTreeMap;
use std::io;

use flexlog_protocol::media::Device;
use flexlog_protocol::{Body, Color, SeqNum, Token};
use rustc_hash::FxHashMap;

use super::numbers::RunSet;
use super::report::Report;
use crate::codec::{self, StagedMeta};
use crate::layout::{Kind, Place};
use crate::recover::Reader;
use crate::superblock::Superblock;

/// Checksums of records, by their numbers.
pub(super) type Sums = BTreeMap<(Color, SeqNum), u32>;

/// Reports every number in `twice` that names different records in the area, or here and in an SSD file, whose checksums
/// are `sums`.
pub(super) fn compare<D: Device>(
    device: &D,
    superblock: &Superblock,
    twice: &RunSet,
    sums: Sums,
    report: &mut Report,
) -> io::Result<()> {
    let reader = Reader::new(device, superblock);
    let mut compare = Compare { twice, sums, report };
    // What waits for its numbers, as the log is read.
    let mut waiting: FxHashMap<Token, Vec<u32>> = FxHashMap::default();
    for (slot, end) in compare.report.chain.clone() {
        let bytes = reader.segment(slot)?;
        let mut offset = 0;
        while offset < end.offset {
            let Some((header, body, _)) = reader.head(&bytes, offset as usize, end.generation) else {
                // Told already.
                offset += 8;
                continue;
            };
            let (place, at) = (Place::new(end.generation, offset), reader.byte(slot, offset));
            match header.kind {
                Kind::Staged => {
                    let crcs = StagedMeta::decode(body).and_then(|meta| Some((meta.staged.token, crcs(body, &meta)?)));
                    waiting.extend(crcs);
                }
                Kind::Copied | Kind::Repaired => {
                    if let Some((meta, first)) = codec::decode_copied(body) {
                        compare.see(meta.staged.color, first, &crcs(body, &meta).unwrap_or_default(), at);
                    }
                }
                Kind::Entry => {
                    let entry = codec::decode_entry(body);
                    let stands = entry.filter(|entry| !compare.report.is_taken_back(place, entry.lsn));
                    if let Some(Body::Assign(assigns)) = stands.map(|entry| entry.body) {
                        for (assign, (token, first)) in assigns.iter().flat_map(|a| a.each().map(move |each| (a, each)))
                        {
                            compare.see(assign.color, first, &waiting.remove(&token).unwrap_or_default(), at);
                        }
                    }
                }
                Kind::Fence | Kind::Part | Kind::Continue | Kind::Truncate => {}
            }
            offset += header.stride() as u32;
        }
    }
    Ok(())
}

struct Compare<'a> {
    twice: &'a RunSet,
    sums: Sums,
    report: &'a mut Report,
}

impl Compare<'_> {
    /// The records of an entry at the byte `at` have these checksums.
    fn see(&mut self, color: Color, first: SeqNum, crcs: &[u32], at: u64) {
        for (i, crc) in (0..).zip(crcs) {
            let Some(number) = first.plus(i).filter(|number| self.twice.has(color, *number)) else { continue };
            if self.sums.insert((color, number), *crc).is_some_and(|before| before != *crc) {
                self.report.bad(at, format!("the number {color}/{number} names two records"));
            }
        }
    }
}

/// The checksums of an entry's records.
fn crcs(body: &[u8], meta: &StagedMeta) -> Option<Vec<u32>> {
    let table = body.get(meta.table_at()..meta.records_at())?;
    (0..meta.staged.records as usize).map(|index| codec::row(table, index).map(|(_, crc)| crc)).collect()
}
