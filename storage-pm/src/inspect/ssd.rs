//! The SSD files, looked at without [`crate::ssd::Tier`], which removes what it does not need when it opens.

use std::collections::BTreeMap;

use flexlog_protocol::{Color, Lsn, Record, SeqNum};
use rustc_hash::FxHashMap;
use std::sync::Arc;

use super::Depth;
use super::area::Log;
use super::numbers::{Run, RunSet};
use super::report::{Numbers, Report, SsdFileReport, SsdReport};
use super::twice::Sums;
use crate::open::sources_of;
use crate::ssd::{Fault, FileMeta, Folder, MANIFEST, Manifest, Refusal, SsdError, SsdFile, file_id};
use crate::superblock::Superblock;

/// Records that are looked at at once.
const AT_ONCE: usize = 1024;
const AT_ONCE_BYTES: usize = 4 << 20;

/// What is known of the SSD files.
#[derive(Debug, Default)]
pub(super) struct Tier {
    path: String,
    listed: Option<Manifest>,
    /// For each generation of a segment that records moved from: those numbered up to there did.
    pub(super) moved: FxHashMap<u32, Lsn>,
    /// What the files have of each color.
    pub(super) colors: BTreeMap<Color, Numbers>,
    /// Every number that a file has a record of, where everything is looked at.
    pub(super) numbers: RunSet,
    /// What is wrong with each file.
    faults: Vec<(String, Vec<Fault>)>,
    /// The checksums of those that the area has, too.
    pub(super) sums: Sums,
}

impl Tier {
    pub(super) fn load(folder: Option<&dyn Folder>, superblock: &Superblock, report: &mut Report) -> Self {
        let Some(folder) = folder else {
            if superblock.tiered {
                let area = report.area.clone();
                report.fault(area, None, "some of its records are in SSD files, and the folder that they are in is not there: name it with --ssd");
            }
            return Self::default();
        };
        let mut tier = Self { path: folder.describe(), ..Self::default() };
        match Manifest::load(folder, superblock.store) {
            Ok(Some(manifest)) => {
                tier.moved = sources_of(manifest.files.iter().cloned());
                tier.listed = Some(manifest);
            }
            Ok(None) if superblock.tiered => {
                report.fault(tier.manifest(), None, "it is missing, and the store has SSD files")
            }
            Ok(None) => {}
            Err(refusal) => refused(report, &refusal),
        }
        tier
    }

    pub(super) fn manifest(&self) -> String {
        format!("{}/{MANIFEST}", self.path)
    }

    /// Whether the manifest is another one now.
    pub(super) fn changed(&self, folder: Option<&dyn Folder>, superblock: &Superblock) -> bool {
        let now = folder.and_then(|folder| Manifest::load(folder, superblock.store).ok().flatten());
        now != self.listed
    }

    pub(super) fn open_files(
        &mut self,
        folder: Option<&dyn Folder>,
        superblock: &Superblock,
        log: &Log,
        depth: Depth,
        report: &mut Report,
    ) {
        let Some(folder) = folder else { return };
        let mut orphans = match folder.list() {
            Ok(names) => names,
            Err(error) => return report.fault(self.path.clone(), None, error.to_string()),
        };
        orphans.sort_unstable();
        let manifest = self.listed.clone();
        let files = manifest.as_ref().map(|manifest| manifest.files.clone()).unwrap_or_default();
        orphans.retain(|name| {
            file_id(name).is_some_and(|id| files.iter().all(|meta| meta.id != id)) || name.ends_with(".tmp")
        });
        for name in orphans {
            let what = match &manifest {
                Some(_) => "the manifest does not name it: left over, and removed by the next start",
                None => "it is here, and there is no manifest that could name it",
            };
            let path = format!("{}/{name}", self.path);
            if manifest.is_some() || name.ends_with(".tmp") {
                report.note(path, None, what);
            } else {
                report.fault(path, None, what);
            }
        }
        let Some(manifest) = manifest else { return };
        let mut ssd = SsdReport { path: self.path.clone(), next_id: manifest.next_id, files: Vec::new() };
        for meta in files {
            self.fits(&meta, log, report);
            match self.file(folder, superblock, meta, log, depth) {
                Ok(file) => ssd.files.push(file),
                Err(SsdError::Refused(refusal)) => refused(report, &refusal),
                Err(error) => report.fault(self.path.clone(), None, error.to_string()),
            }
        }
        self.numbers.sort();
        report.ssd = Some(ssd);
    }

    /// Tells what is wrong with the files. Damage is no fault where every record that it hit is whole elsewhere,
    /// or trimmed.
    pub(super) fn damaged_records(&mut self, log: &Log, report: &mut Report) {
        for (file, faults) in std::mem::take(&mut self.faults) {
            let whole = |(color, number)| {
                let trimmed = log.trim(color).is_some_and(|point| point >= number);
                trimmed || self.numbers.has(color, number) || log.is_whole(color, number)
            };
            // The blocks with damage that was not repaired.
            let bad: Vec<u64> = faults
                .iter()
                .filter(|fault| !fault.record.is_some_and(whole))
                .filter_map(|fault| fault.within)
                .collect();
            let hit: Vec<u64> = faults.iter().filter_map(|fault| fault.within).collect();
            for Fault { offset, what, record, .. } in &faults {
                let of_block = record.is_none() && hit.contains(offset) && !bad.contains(offset);
                if record.is_some_and(whole) || of_block {
                    report.note(
                        file.clone(),
                        Some(*offset),
                        format!("{what}, and what it hit is trimmed, or whole where it is read"),
                    );
                } else {
                    report.fault(file.clone(), Some(*offset), what.clone());
                }
            }
        }
    }

    /// What the manifest says of a file was in the log before.
    fn fits(&self, meta: &FileMeta, log: &Log, report: &mut Report) {
        let id = meta.id;
        if meta.upto > log.last {
            let what = format!(
                "file {id} has records up to entry {}, and the log ends at {}: the area lost its end",
                meta.upto, log.last
            );
            report.fault(self.manifest(), None, what);
        }
        if let Some(source) = meta.sources.iter().find(|source| **source > log.end.generation) {
            let what = format!(
                "file {id} is from generation {source}, and the log ends in generation {}: the area lost its end",
                log.end.generation
            );
            report.fault(self.manifest(), None, what);
        }
    }

    fn file(
        &mut self,
        folder: &dyn Folder,
        superblock: &Superblock,
        meta: FileMeta,
        log: &Log,
        depth: Depth,
    ) -> Result<SsdFileReport, SsdError> {
        let file = Arc::new(SsdFile::open(folder, superblock.store, meta)?);
        let index = file.index()?;
        for row in index.colors() {
            let numbers = Numbers { first: row.first, last: row.last, records: row.records };
            let held = self.colors.entry(row.color).or_insert(Numbers { records: 0, ..numbers });
            held.first = held.first.min(row.first);
            held.last = held.last.max(row.last);
            held.records += row.records;
        }
        if depth == Depth::Everything {
            self.faults.push((file.name().to_owned(), file.verify(&|color| log.trim(color))));
            for row in index.colors() {
                let from = match log.trim(row.color) {
                    Some(trim) if trim >= row.last => continue,
                    Some(trim) => row.first.max(trim.plus(1).unwrap_or(row.last)),
                    None => row.first,
                };
                self.read_numbers(&file, &index, row.color, from, log);
            }
        }
        let FileMeta { bytes, records, upto, sources, .. } = file.meta().clone();
        Ok(SsdFileReport { path: file.name().to_owned(), bytes, records, colors: index.colors().len(), upto, sources })
    }

    /// Notes the numbers of a color that can be read. What cannot was told by the file's own check.
    fn read_numbers(
        &mut self,
        file: &Arc<SsdFile>,
        index: &Arc<crate::ssd::FileIndex>,
        color: Color,
        from: SeqNum,
        log: &Log,
    ) {
        let mut next = Some(from);
        while let Some(from) = next {
            let mut records: Vec<(SeqNum, Record)> = Vec::new();
            let result = file.read(index, color, from, SeqNum::MAX, AT_ONCE, AT_ONCE_BYTES, &mut records);
            for (number, record) in &records {
                self.numbers.add(color, Run { first: *number, last: *number, at: 0 });
                if log.has(color, *number) {
                    self.sums.insert((color, *number), record.crc());
                }
            }
            next = match result {
                Ok(()) if records.is_empty() => None,
                Ok(()) => records.last().and_then(|(last, _)| after(*last)),
                Err(SsdError::Damaged { number, .. }) => after(number.max(from)),
                Err(_) => None,
            };
        }
    }
}

/// The next number that a record could have.
fn after(number: SeqNum) -> Option<SeqNum> {
    number.plus(1).or_else(|| number.epoch().next().map(SeqNum::first_of))
}

fn refused(report: &mut Report, refusal: &Refusal) {
    let (file, offset, what) = match refusal {
        Refusal::Damaged { file, offset, what } => (file, Some(*offset), (*what).to_owned()),
        Refusal::Missing { file } => (file, None, "it is missing, and the manifest names it".to_owned()),
        Refusal::NoManifest { file, .. } => (file, None, "it is here, and there is no manifest".to_owned()),
        Refusal::Length { file, found, wanted } => {
            (file, Some(*found.min(wanted)), format!("it has {found} bytes and should have {wanted}"))
        }
        Refusal::Version { file, found, known } => (
            file,
            None,
            format!("it has format version {found}, this program knows version {known}: use the program that wrote it"),
        ),
        Refusal::OtherStore { file, found, wanted } => {
            (file, None, format!("it belongs to the store {found}, not to {wanted}"))
        }
        Refusal::Foreign { file } => (file, None, "it is not a file of a FlexLog store".to_owned()),
        Refusal::Io { file, source } => (file, None, source.to_string()),
    };
    report.fault(file.clone(), offset, what);
}
