//! One suite that every device passes.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

use std::io::ErrorKind;
#[cfg(feature = "pmem2")]
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use flexlog_protocol::media::{Device, FenceId};
use flexlog_storage_pm::device::{
    AnyDevice, DeviceKind, FileDevice, Flush, Mapping, MmapDevice, SimMedia, SplitMix, device_for,
};

#[cfg(feature = "pmem2")]
use flexlog_storage_pm::device::Pmem2Device;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const LIMIT: u64 = 8 << 20;

/// Set in processes that run one of these tests for another, whose environment must not be changed.
const CHILD: &str = "FLEXLOG_DEVICES_CHILD";
/// What libpmem2 is told to believe of the memory; in children that run the suite on the pmem2 device.
const FORCE_GRANULARITY: &str = "PMEM2_FORCE_GRANULARITY";

fn is_child() -> bool {
    std::env::var_os(CHILD).is_some()
}

/// Runs these tests, and no others, in a process of their own, in which they are to pass.
fn passes_in_child(tests: &[&str], variables: &[(&str, &str)]) {
    // A write beyond a limit is then an error to whoever made it, and not the end of the process.
    let mut child = Command::new("sh");
    child.args(["-c", "trap '' XFSZ; exec \"$0\" --exact \"$@\""]).arg(std::env::current_exe().unwrap()).args(tests);
    child.env_remove(FORCE_GRANULARITY).env_remove("FLEXLOG_FLUSH").env(CHILD, "1").envs(variables.iter().copied());
    let Output { status, stdout, stderr } = child.output().unwrap();
    let said = String::from_utf8_lossy(&stdout).into_owned() + &String::from_utf8_lossy(&stderr);
    assert!(status.success(), "{variables:?}: {said}");
    assert!(said.contains(&format!("{} passed", tests.len())), "{variables:?}: {said}");
}

/// Opens the device, the same one each time.
type Open = Box<dyn FnMut() -> Box<dyn Device>>;

/// A folder in memory, or `None` where this machine has none.
fn memory_folder() -> Option<tempfile::TempDir> {
    let folder = tempfile::tempdir_in("/dev/shm").ok()?;
    (device_for(folder.path()).unwrap() == DeviceKind::Mmap).then_some(folder)
}

/// The tests that every device passes.
#[cfg(feature = "pmem2")]
const SUITE: [&str; 4] = [
    "it_starts_empty_and_grows_with_zeros",
    "what_is_beyond_the_end_is_refused_and_changes_nothing",
    "fences_count_up_and_are_done_when_waited_for",
    "what_was_written_is_read_at_once_during_a_fence_and_after_reopening",
];

fn with_each(test: impl Fn(&str, Open)) {
    #[cfg(feature = "pmem2")]
    if is_child() {
        let folder = memory_folder().expect("these tests need a tmpfs at /dev/shm");
        let path = folder.path().join("area");
        return test("pmem2", Box::new(move || Box::new(Pmem2Device::open(&path).unwrap())));
    }
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
    for flush in Flush::here() {
        let path = folder.path().join(format!("area-{}", flush.name()));
        let mapping = Mapping { limit: LIMIT, prefault: false };
        let open = move || Box::new(MmapDevice::open_with(&path, mapping, flush).unwrap()) as Box<dyn Device>;
        test(&format!("mmap, {}", flush.name()), Box::new(open));
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
        assert_eq!(device.read(4095, &mut [0; 2]).unwrap_err().kind(), ErrorKind::UnexpectedEof, "{name}");
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
        assert_eq!(device.grow(LIMIT + (65 << 20)).unwrap_err().kind(), ErrorKind::StorageFull);
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

/// Lets this process's files be so long and no longer.
fn limit_files(bytes: u64) {
    let Rlimit { maximum, .. } = getrlimit(Resource::Fsize);
    setrlimit(Resource::Fsize, Rlimit { current: Some(bytes), maximum }).unwrap();
}

#[test]
fn the_file_device_reports_the_disks_error_for_good() {
    if !is_child() {
        return passes_in_child(&["the_file_device_reports_the_disks_error_for_good"], &[]);
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("area");
    let mut device = FileDevice::open(&path, LIMIT).unwrap();
    device.grow(1 << 20).unwrap();
    limit_files(64 << 10);
    device.write(0, &[b"fits"]).unwrap();
    let fence = device.fence().unwrap();
    device.wait(fence).unwrap();
    device.write(512 << 10, &[b"does not"]).unwrap();
    let fence = device.fence().unwrap();
    let error = device.wait(fence).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::FileTooLarge, "{error}");
    assert!(error.to_string().contains(&path.display().to_string()), "{error}");
    // It stays so when the medium is well again.
    limit_files(LIMIT);
    device.write(0, &[b"more"]).unwrap();
    for refused in [device.fenced().map(drop), device.fence().map(drop), device.wait(FenceId(1))] {
        assert_eq!(refused.unwrap_err().to_string(), error.to_string());
    }
}

#[test]
fn a_medium_without_room_leaves_the_device_as_it_was() {
    if !is_child() {
        let granularity = (FORCE_GRANULARITY, "CACHE_LINE");
        return passes_in_child(&["a_medium_without_room_leaves_the_device_as_it_was"], &[granularity]);
    }
    let (disk, memory) = (tempfile::tempdir().unwrap(), memory_folder().unwrap());
    let file = FileDevice::open(&disk.path().join("area"), LIMIT).unwrap();
    let mapping = Mapping { limit: LIMIT, prefault: false };
    let mmap = MmapDevice::open(&memory.path().join("area"), mapping).unwrap();
    #[cfg_attr(not(feature = "pmem2"), allow(unused_mut))]
    let mut devices: Vec<Box<dyn Device>> = vec![Box::new(file), Box::new(mmap)];
    #[cfg(feature = "pmem2")]
    devices.push(Box::new(Pmem2Device::open(&memory.path().join("area-pmem2")).unwrap()));
    limit_files(1 << 20);
    for mut device in devices {
        let name = device.describe();
        device.grow(64 << 10).unwrap();
        device.write(100, &[b"before"]).unwrap();
        let error = device.grow(2 << 20).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::FileTooLarge, "{name}: {error}");
        assert_eq!(device.len(), 64 << 10, "{name}");
        device.write((64 << 10) - 5, &[b"after"]).unwrap();
        assert_eq!(read(&*device, 100, 6), b"before", "{name}");
        device.grow(1 << 20).unwrap();
        device.write((1 << 20) - 3, &[b"end"]).unwrap();
        let fence = device.fence().unwrap();
        device.wait(fence).unwrap();
        assert_eq!(read(&*device, (64 << 10) - 5, 6), b"after\0", "{name}");
    }
}

#[test]
fn the_environment_says_how_mmap_writes_back() {
    if !is_child() {
        let run = |asked| {
            passes_in_child(&["the_environment_says_how_mmap_writes_back"], &[("FLEXLOG_FLUSH", asked)]);
        };
        for way in [Flush::Clwb, Flush::ClflushOpt, Flush::Clflush, Flush::Msync] {
            run(way.name());
        }
        return run("sfence");
    }
    let asked = std::env::var("FLEXLOG_FLUSH").unwrap();
    let folder = memory_folder().unwrap();
    let opened = MmapDevice::open(&folder.path().join("area"), Mapping { limit: LIMIT, prefault: false });
    if Flush::here().iter().any(|way| way.name() == asked) {
        assert!(opened.unwrap().describe().contains(&format!(", {asked} ")));
    } else {
        let error = opened.unwrap_err().to_string();
        assert!(error.contains(&format!("FLEXLOG_FLUSH is `{asked}`")) && error.contains("msync"), "{error}");
    }
}

#[cfg(feature = "pmem2")]
#[test]
fn pmem2_passes_the_suite_at_each_granularity_that_it_takes() {
    for granularity in ["CACHE_LINE", "BYTE"] {
        passes_in_child(&SUITE, &[(FORCE_GRANULARITY, granularity)]);
    }
}

#[cfg(feature = "pmem2")]
#[test]
fn pmem2_says_what_it_is_on_and_promises() {
    if !is_child() {
        for granularity in ["CACHE_LINE", "BYTE"] {
            passes_in_child(&["pmem2_says_what_it_is_on_and_promises"], &[(FORCE_GRANULARITY, granularity)]);
        }
        return;
    }
    let granularity = std::env::var(FORCE_GRANULARITY).unwrap().to_lowercase().replace('_', " ");
    let (disk, memory) = (tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap(), memory_folder().unwrap());
    for (folder, on) in [(&disk, "the page cache of a disk"), (&memory, "tmpfs")] {
        let device = Pmem2Device::open(&folder.path().join("area")).unwrap();
        let forced = format!("granularity {granularity}, forced by PMEM2_FORCE_GRANULARITY");
        assert_eq!(device.describe(), format!("pmem2 on {on}, {forced} (does not outlive the machine)"));
    }
}

#[cfg(feature = "pmem2")]
#[test]
fn pmem2_refuses_what_would_need_msync_by_name() {
    if !is_child() {
        let name = "pmem2_refuses_what_would_need_msync_by_name";
        passes_in_child(&[name], &[(FORCE_GRANULARITY, "PAGE")]);
        // No disk and no tmpfs is persistent memory, so this is what libpmem2 finds by itself too.
        return passes_in_child(&[name], &[]);
    }
    let (disk, memory) = (tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap(), memory_folder().unwrap());
    for folder in [&disk, &memory] {
        let path = folder.path().join("area");
        for left in [None, Some(8192)] {
            if let Some(len) = left {
                std::fs::write(&path, vec![7; len]).unwrap();
            }
            let error = Pmem2Device::open(&path).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
            let text = error.to_string();
            assert!(text.starts_with(&path.display().to_string()), "{text}");
            assert!(text.contains("PAGE") && text.contains("file device"), "{text}");
            assert_eq!(path.metadata().ok().map(|file| file.len() as usize), left, "it is as it was");
        }
    }
}

#[cfg(feature = "pmem2")]
#[test]
fn pmem2_refuses_what_is_no_memory() {
    let error = Pmem2Device::open(Path::new("/dev/null")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().starts_with("/dev/null: "), "{error}");
    assert!(Pmem2Device::open(Path::new("/dev/shm")).is_err());
}

#[test]
fn the_folder_says_which_device() {
    let folder = memory_folder().unwrap();
    assert_eq!(device_for(folder.path()).unwrap(), DeviceKind::Mmap);
    let device =
        AnyDevice::Mmap(MmapDevice::open(&folder.path().join("a"), Mapping { limit: LIMIT, prefault: false }).unwrap());
    assert!(device.describe().contains("does not outlive the machine"));
}
