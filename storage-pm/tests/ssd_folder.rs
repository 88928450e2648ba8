//! What every [`Folder`] must do, on a real disk, on tmpfs and simulated; and what a simulated crash may leave.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stderr, reason = "tests")]

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use flexlog_storage_pm::ssd::{DirFolder, Folder, SimFolder};

const PAGE: usize = 4096;

fn write(folder: &dyn Folder, name: &str, bytes: &[u8]) {
    let mut file = folder.create(name).unwrap();
    file.append(bytes).unwrap();
    file.sync().unwrap();
}

fn read(folder: &dyn Folder, name: &str) -> Vec<u8> {
    let file = folder.open(name).unwrap();
    let mut bytes = vec![7; file.len().unwrap() as usize];
    file.read_at(0, &mut bytes).unwrap();
    bytes
}

fn names(folder: &dyn Folder) -> Vec<String> {
    let mut names = folder.list().unwrap();
    names.sort();
    names
}

/// The suite. Returns whether the folder can punch holes.
fn conforms(folder: &dyn Folder) -> bool {
    assert!(!folder.describe().is_empty());
    assert!(names(folder).is_empty());
    assert_eq!(folder.open("a").unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(folder.remove("a").unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(folder.rename("a", "b").unwrap_err().kind(), ErrorKind::NotFound);

    // Appends follow one another, and can be read before they are synced.
    let mut file = folder.create("a").unwrap();
    assert!(folder.open("a").unwrap().is_empty().unwrap());
    file.append(b"one ").unwrap();
    file.append(&[]).unwrap();
    file.append(b"two").unwrap();
    assert_eq!(read(folder, "a"), b"one two");
    file.sync().unwrap();
    drop(file);
    folder.sync().unwrap();

    let file = folder.open("a").unwrap();
    let mut part = [0; 3];
    file.read_at(4, &mut part).unwrap();
    assert_eq!(&part, b"two");
    for at in [5, 7, 100, 1 << 40] {
        assert_eq!(file.read_at(at, &mut part).unwrap_err().kind(), ErrorKind::UnexpectedEof, "at {at}");
    }
    file.read_at(7, &mut []).unwrap();

    // A rename replaces, and those who have the old file open keep it.
    write(folder, "b", b"other");
    folder.rename("b", "a").unwrap();
    folder.sync().unwrap();
    assert_eq!((names(folder), read(folder, "a")), (vec!["a".to_owned()], b"other".to_vec()));
    file.read_at(4, &mut part).unwrap();
    assert_eq!(&part, b"two");

    // A removed file is gone by name, not for those who have it open.
    let file = folder.open("a").unwrap();
    folder.remove("a").unwrap();
    folder.sync().unwrap();
    assert!(names(folder).is_empty());
    let mut whole = [0; 5];
    file.read_at(0, &mut whole).unwrap();
    assert_eq!(&whole, b"other");

    // Creating empties.
    write(folder, "a", b"long before");
    write(folder, "a", b"new");
    assert_eq!(read(folder, "a"), b"new");

    // Punching zeroes what it names, and nothing else, and the length stays.
    write(folder, "p", &[9; 4 * PAGE + 5]);
    let file = folder.open("p").unwrap();
    let can = match file.punch(PAGE as u64, 2 * PAGE as u64) {
        Ok(()) => true,
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            false
        }
    };
    let mut expected = vec![9; 4 * PAGE + 5];
    if can {
        expected[PAGE..3 * PAGE].fill(0);
        file.punch(PAGE as u64, 2 * PAGE as u64).unwrap();
    }
    assert_eq!(read(folder, "p"), expected);
    can
}

#[test]
fn a_folder_on_a_disk_conforms() {
    let dir = tempfile::tempdir().unwrap();
    let can = conforms(&DirFolder::new(dir.path()));
    eprintln!("punching on {}: {can}", dir.path().display());
}

#[test]
fn a_folder_on_tmpfs_conforms() {
    let shm = Path::new("/dev/shm");
    if !shm.is_dir() {
        eprintln!("no tmpfs here");
        return;
    }
    let dir = tempfile::tempdir_in(shm).unwrap();
    assert!(conforms(&DirFolder::new(dir.path())), "tmpfs has holes");
}

#[test]
fn a_simulated_folder_conforms() {
    assert!(conforms(&SimFolder::new()));
    let without = SimFolder::new();
    without.without_holes();
    assert!(!conforms(&without));
}

#[test]
fn a_folder_passes_by_what_is_no_file() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("sub")).unwrap();
    std::fs::write(dir.path().join("a"), b"x").unwrap();
    assert_eq!(names(&DirFolder::new(dir.path())), ["a"]);
}

#[test]
fn a_file_that_may_not_be_written_can_be_read_and_not_punched() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a");
    std::fs::write(&path, [1; 2 * PAGE]).unwrap();
    let mut rights = path.metadata().unwrap().permissions();
    rights.set_readonly(true);
    std::fs::set_permissions(&path, rights).unwrap();
    let folder = DirFolder::new(dir.path());
    assert_eq!(read(&folder, "a"), [1; 2 * PAGE]);
    // The superuser may write all the same.
    if std::fs::OpenOptions::new().write(true).open(&path).is_err() {
        let error = folder.open("a").unwrap().punch(0, PAGE as u64).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
    }
}

#[test]
fn an_unsynced_file_may_be_kept_in_part_and_a_synced_one_is_kept_whole() {
    let folder = SimFolder::new();
    let mut file = folder.create("a").unwrap();
    file.append(&[1; 100]).unwrap();
    file.sync().unwrap();
    folder.sync().unwrap();
    assert_eq!(folder.atoms(), 0);
    file.append(&[2; 3 * PAGE]).unwrap();
    let (mut lengths, mut torn) = (BTreeSet::new(), 0);
    for seed in 0..300 {
        let image = folder.crash(seed);
        let bytes = image.contents("a").unwrap();
        assert_eq!(bytes[..100], [1; 100]);
        assert!((100..=100 + 3 * PAGE).contains(&bytes.len()));
        assert!(bytes[100..].iter().all(|byte| *byte == 0 || *byte == 2));
        torn += usize::from(bytes[100..].contains(&0) && bytes[100..].contains(&2));
        lengths.insert(bytes.len());
        assert_eq!(folder.crash(seed).contents("a").unwrap(), bytes, "the same seed gives the same image");
    }
    assert!(lengths.len() > 10 && torn > 10, "{} {torn}", lengths.len());
    // The process died, the machine did not.
    assert_eq!(folder.copy().contents("a").unwrap().len(), 100 + 3 * PAGE);
}

#[test]
fn every_choice_of_pages_and_names_is_an_image() {
    let folder = SimFolder::new();
    write(&folder, "old", b"old");
    folder.sync().unwrap();
    let mut file = folder.create("new").unwrap();
    file.append(&[3; 2 * PAGE]).unwrap();
    folder.rename("new", "old").unwrap();
    // Two pages, the creation, and the two halves of the rename.
    assert_eq!(folder.atoms(), 5);
    let mut found = BTreeSet::new();
    for choice in 0..1 << 5 {
        let image = folder.crash_with(choice);
        assert!(image.contents("old").is_some(), "a rename never leaves the target without a file");
        found.insert((image.contents("old"), image.contents("new")));
    }
    let synced = Some(b"old".to_vec());
    assert!(found.contains(&(synced.clone(), None)), "nothing was kept");
    assert!(found.contains(&(Some(vec![3; 2 * PAGE]), None)), "all was kept");
    assert!(found.contains(&(Some(Vec::new()), None)), "the name was kept, and not the data");
    assert!(found.contains(&(synced, Some(vec![3; 2 * PAGE]))), "the rename alone was lost");
    let second: Vec<u8> = [[0; PAGE], [3; PAGE]].concat();
    assert!(found.contains(&(Some(second), None)), "the second page alone was kept");
}

#[test]
fn a_rename_that_is_lost_leaves_the_old_name() {
    let folder = SimFolder::new();
    write(&folder, "a", b"a");
    folder.sync().unwrap();
    folder.rename("a", "b").unwrap();
    for seed in 0..100 {
        let image = folder.crash(seed);
        assert!(image.contents("a").is_some() || image.contents("b").is_some(), "seed {seed}");
    }
    folder.sync().unwrap();
    assert_eq!(names(&folder.crash_with(0)), ["b"]);
}

#[test]
fn a_punch_is_done_or_lost_and_gives_space_back() {
    let folder = SimFolder::new();
    write(&folder, "a", &[5; 4 * PAGE]);
    folder.sync().unwrap();
    assert_eq!(folder.used(), 4 * PAGE as u64);
    folder.open("a").unwrap().punch(PAGE as u64, 2 * PAGE as u64).unwrap();
    assert_eq!((folder.used(), folder.atoms()), (2 * PAGE as u64, 1));
    assert_eq!(folder.crash_with(0).contents("a").unwrap(), [5; 4 * PAGE]);
    let done = folder.crash_with(1);
    assert_eq!(done.contents("a").unwrap()[PAGE..3 * PAGE], [0; 2 * PAGE]);
    assert_eq!(done.used(), 2 * PAGE as u64);
    folder.sync().unwrap();
    assert_eq!(folder.atoms(), 0);
    assert_eq!(folder.crash_with(0).contents("a").unwrap()[PAGE..3 * PAGE], [0; 2 * PAGE]);
}

#[test]
fn faults_happen_when_they_are_told_to() {
    let folder = SimFolder::new();
    let mut file = folder.create("a").unwrap();
    folder.fail_append(2);
    file.append(&[1; 10]).unwrap();
    assert!(file.append(&[2; 10]).is_err());
    file.append(&[3; 10]).unwrap();
    assert_eq!(folder.contents("a").unwrap().len(), 20);
    folder.fail_read(1);
    let reading = folder.open("a").unwrap();
    assert!(reading.read_at(0, &mut [0; 4]).is_err());
    reading.read_at(0, &mut [0; 4]).unwrap();
    // After a sync that failed, the next one lies, as real ones did.
    folder.sync().unwrap();
    folder.fail_sync(1);
    assert!(file.sync().is_err());
    file.sync().unwrap();
    assert_eq!(folder.crash_with(0).contents("a").unwrap().len(), 0);
}

#[test]
fn a_full_file_system_says_so_and_removing_makes_room() {
    let folder = SimFolder::new();
    folder.set_limit(3 * PAGE as u64);
    write(&folder, "a", &[1; 2 * PAGE]);
    let mut file = folder.create("b").unwrap();
    assert_eq!(file.append(&[2; 2 * PAGE]).unwrap_err().kind(), ErrorKind::StorageFull);
    folder.remove("a").unwrap();
    file.append(&[2; PAGE]).unwrap();
}

#[test]
fn the_observer_sees_every_change() {
    let folder = SimFolder::new();
    let count = Arc::new(AtomicUsize::new(0));
    let (seen, view) = (count.clone(), folder.clone());
    folder.on_step(Box::new(move || {
        // It may look at the folder.
        let _ = (view.atoms(), view.crash(1));
        seen.fetch_add(1, Ordering::Relaxed);
    }));
    write(&folder, "a", b"x");
    folder.rename("a", "b").unwrap();
    folder.sync().unwrap();
    folder.open("b").unwrap().punch(0, 1).unwrap();
    folder.remove("b").unwrap();
    assert_eq!(count.load(Ordering::Relaxed), 7);
    assert!(folder.damage("b", 0, b"y") || folder.contents("b").is_none());
}
