//! One suite that every device passes.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use flexlog_protocol::media::{Device, FenceId};
use flexlog_storage_pm::device::{
    AnyDevice, DeviceKind, FileDevice, Mapping, MmapDevice, SimMedia, SplitMix, device_for,
};

const LIMIT: u64 = 8 << 20;

/// Opens the device, the same one each time.
type Open = Box<dyn FnMut() -> Box<dyn Device>>;

/// A folder in memory, or `None` where this machine has none.
fn memory_folder() -> Option<tempfile::TempDir> {
    let folder = tempfile::tempdir_in("/dev/shm").ok()?;
    (device_for(folder.path()).unwrap() == DeviceKind::Mmap).then_some(folder)
}

fn with_each(test: impl Fn(&str, Open)) {
    let media = SimMedia::new(LIMIT);
    test("sim", Box::new(move || Box::new(media.device())));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("area");
    test("file", Box::new(move || Box::new(FileDevice::open(&path, LIMIT).unwrap())));
    let folder = memory_folder().expect("these tests need a tmpfs at /dev/shm");
    for prefault in [false, true] {
        let path = folder.path().join(format!("area-{prefault}"));
        let mapping = Mapping { limit: LIMIT, prefault };
        test("mmap", Box::new(move || Box::new(MmapDevice::open(&path, mapping).unwrap())));
    }
}

fn read(device: &dyn Device, at: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0xee; len];
    device.read(at, &mut bytes).unwrap();
    if let Some(slice) = device.slice(at, len) {
        assert_eq!(slice, bytes);
    }
    bytes
}

#[test]
fn it_starts_empty_and_grows_with_zeros() {
    with_each(|name, mut open| {
        let mut device = open();
        assert!(device.is_empty() && !device.describe().is_empty(), "{name}");
        device.grow(4096).unwrap();
        device.write(0, &[b"abc"]).unwrap();
        device.grow(1 << 20).unwrap();
        device.grow(4096).unwrap();
        assert_eq!(device.len(), 1 << 20, "{name}: it never shrinks");
        let bytes = read(&*device, 0, 1 << 20);
        assert!(bytes.starts_with(b"abc") && bytes[3..].iter().all(|byte| *byte == 0), "{name}");
    });
}

#[test]
fn what_is_beyond_the_end_is_refused_and_changes_nothing() {
    with_each(|name, mut open| {
        let mut device = open();
        device.grow(4096).unwrap();
        assert!(device.write(4090, &[b"1234567"]).is_err(), "{name}");
        assert!(device.write(u64::MAX, &[b"1"]).is_err(), "{name}");
        assert_eq!(device.read(4095, &mut [0; 2]).unwrap_err().kind(), std::io::ErrorKind::UnexpectedEof, "{name}");
        assert!(device.slice(4095, 2).is_none(), "{name}");
        device.write(4090, &[b"123456"]).unwrap();
        assert_eq!(read(&*device, 4088, 8), b"\0\x00123456", "{name}");
    });
}

#[test]
fn fences_count_up_and_are_done_when_waited_for() {
    with_each(|name, mut open| {
        let mut device = open();
        device.grow(4096).unwrap();
        let woken = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&woken);
        device.on_fenced(Box::new(move || {
            count.fetch_add(1, Ordering::SeqCst);
        }));
        for n in 1..=20 {
            device.write(n * 64, &[&n.to_le_bytes()]).unwrap();
            let fence = device.fence().unwrap();
            assert_eq!(fence, FenceId(n), "{name}");
            device.wait(fence).unwrap();
            assert_eq!(device.fenced().unwrap(), fence, "{name}");
        }
        drop(device);
        let expected = if name == "file" { 20 } else { 0 };
        assert_eq!(woken.load(Ordering::SeqCst), expected, "{name}: called for those that were done later");
    });
}

#[test]
fn what_was_written_is_read_at_once_during_a_fence_and_after_reopening() {
    with_each(|name, mut open| {
        let mut device = open();
        device.grow(LIMIT).unwrap();
        let mut model = vec![0; LIMIT as usize];
        let mut draw = SplitMix(7);
        let mut at = 0;
        let mut last = FenceId(0);
        for step in 0..3000_u64 {
            // Mostly forward as a log does, over the padding of the last write; now and then somewhere else.
            at = match draw.draw() % 8 {
                0 => draw.draw() % (LIMIT - 70_000),
                1..=3 => at / 64 * 64 + draw.draw() % 64,
                _ => at,
            };
            let parts: Vec<Vec<u8>> = (0..1 + draw.draw() % 4)
                .map(|_| {
                    let len = [0, 1, 7, 8, 63, 64, 65, 200, 1000, 9000][(draw.draw() % 10) as usize];
                    (0..len).map(|_| draw.draw() as u8).collect()
                })
                .collect();
            let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
            device.write(at, &parts).unwrap();
            let bytes = parts.concat();
            model[at as usize..at as usize + bytes.len()].copy_from_slice(&bytes);
            at += bytes.len() as u64;
            if at > LIMIT - 70_000 {
                at = 0;
            }
            if step % 7 == 0 && device.fenced().unwrap() >= last {
                last = device.fence().unwrap();
            }
            let from = draw.draw() % (LIMIT - 5000);
            assert!(read(&*device, from, 5000) == model[from as usize..from as usize + 5000], "{name}: step {step}");
            let near = at.saturating_sub(3000);
            assert!(read(&*device, near, 4000) == model[near as usize..near as usize + 4000], "{name}: step {step}");
        }
        device.wait(last).unwrap();
        let fence = device.fence().unwrap();
        device.wait(fence).unwrap();
        drop(device);
        let device = open();
        assert!(read(&*device, 0, LIMIT as usize) == model, "{name}: after reopening");
    });
}

#[test]
fn a_device_beyond_its_limit_stays_as_it_was() {
    let media = SimMedia::new(LIMIT);
    let folder = memory_folder().unwrap();
    let mapping = Mapping { limit: LIMIT, prefault: false };
    let mmap = MmapDevice::open(&folder.path().join("area"), mapping).unwrap();
    for mut device in [Box::new(media.device()) as Box<dyn Device>, Box::new(mmap)] {
        device.grow(LIMIT).unwrap();
        assert_eq!(device.grow(LIMIT + (65 << 20)).unwrap_err().kind(), std::io::ErrorKind::StorageFull);
        assert_eq!(device.len(), LIMIT);
        device.write(LIMIT - 8, &[b"the last"]).unwrap();
    }
}

#[test]
fn mmap_refuses_a_disk_by_name() {
    let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    if device_for(folder.path()).unwrap() == DeviceKind::Mmap {
        return;
    }
    let path = folder.path().join("area");
    let error = MmapDevice::open(&path, Mapping { limit: LIMIT, prefault: false }).unwrap_err().to_string();
    assert!(error.contains(&path.display().to_string()) && error.contains("file device"), "{error}");
}

#[test]
fn a_failed_fence_is_final() {
    let media = SimMedia::new(LIMIT);
    let mut device = media.device();
    device.grow(4096).unwrap();
    media.fail_fence(2);
    device.fence().unwrap();
    assert!(device.fence().is_err() && device.fenced().is_err() && device.fence().is_err());
    assert!(device.write(0, &[b"x"]).is_err());
}

#[test]
fn the_file_device_reports_the_disks_error_for_good() {
    // Nothing can be written to this one, but it can be opened.
    let Ok(mut device) = FileDevice::open(Path::new("/dev/full"), LIMIT) else { return };
    if device.grow(4096).is_ok() {
        device.write(0, &[b"x"]).unwrap();
        let fence = device.fence().unwrap();
        assert!(device.wait(fence).is_err() && device.fenced().is_err() && device.fence().is_err());
    }
}

#[test]
fn the_folder_says_which_device() {
    let folder = memory_folder().unwrap();
    assert_eq!(device_for(folder.path()).unwrap(), DeviceKind::Mmap);
    let device =
        AnyDevice::Mmap(MmapDevice::open(&folder.path().join("a"), Mapping { limit: LIMIT, prefault: false }).unwrap());
    assert!(device.describe().contains("does not outlive the machine"));
}
