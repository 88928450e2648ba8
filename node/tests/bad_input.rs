//! Whatever a user can get wrong: a clear message, the right exit code, and a server that serves on.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stderr, reason = "a test that panics has failed")]

mod support;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;

use support::{BINARY, On, Server, copy_folder, folder, run, skipped, text, tool};

fn up(folder: &Path, listen: &str) -> Command {
    let mut command = Command::new(BINARY);
    command.args(["up", "--listen", listen, "--dir"]).arg(folder);
    command
}

/// `up` must fail with exit code 1, and what it says must name each of `words`.
fn up_fails(command: Command, words: &[&str]) {
    match Server::spawn(command) {
        Ok(_) => panic!("`up` serves"),
        Err((status, errors)) => {
            assert_eq!(status.code(), Some(1), "{errors}");
            for word in words {
                assert!(errors.contains(word), "'{word}' is not in: {errors}");
            }
        }
    }
}

fn serves(server: &Server) {
    let number = text(&server.run_with(&["append", "proof"], b"still here\n").stdout);
    assert_eq!(server.run(&["read", "proof", number.trim_end()]), "still here\n");
}

#[test]
fn colors_numbers_and_addresses() {
    let Some(folder) = folder(On::Tmpfs) else { return };
    let server = Server::start(folder.path());
    let number = text(&server.run_with(&["append", "orders"], b"one\n").stdout);
    let number = number.trim_end();

    let says = server.fails(&["append", "nothing", "--no-create"], b"x\n", 1);
    assert!(says.contains("nothing"), "{says}");
    for command in [&["read", "nothing", "1.0"][..], &["tail", "nothing"], &["trim", "nothing", "1.0"]] {
        let says = server.fails(command, b"", 1);
        assert!(says.contains("nothing"), "{says}");
    }
    let says = server.fails(&["append", "bad\nname"], b"x\n", 1);
    assert!(says.contains("bad"), "{says}");
    assert_eq!(server.run(&["colors"]).lines().count(), 1, "none of these made a color");

    let beyond = number.replace(".0", ".7");
    let says = server.fails(&["read", "orders", &beyond], b"", 1);
    assert!(says.contains(&beyond) && says.contains("orders"), "{says}");
    let says = server.fails(&["read", "orders", "0.5"], b"", 1);
    assert!(says.contains("0.5"), "{says}");
    for nonsense in ["1", "1.4294967296", "x.y", "-1.0", "1.0.0"] {
        let says = server.fails(&["read", "orders", nonsense], b"", 2);
        assert!(says.contains(nonsense), "{says}");
    }
    server.fails(&["append"], b"", 2);
    server.fails(&["nonsense"], b"", 2);
    server.fails(&["append", "orders", "--file", "/does/not/exist"], b"", 1);

    let mut nobody = Command::new(BINARY);
    nobody.args(["status", "--cluster", "127.0.0.1:1"]);
    let output = run(nobody, b"");
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("127.0.0.1:1"), "{}", text(&output.stderr));
    serves(&server);
}

#[test]
fn a_record_one_byte_over_the_limit() {
    let Some(folder) = folder(On::Tmpfs) else { return };
    let server = Server::start(folder.path());
    let limit = 1 << 20;
    let mut input = b"first\n".to_vec();
    input.extend(std::iter::repeat_n(b'x', limit + 1));
    input.push(b'\n');
    let output = run(server.command(&["append", "orders"]), &input);
    assert_eq!(output.status.code(), Some(1));
    let says = text(&output.stderr);
    assert!(says.contains("line 2") && says.contains(&limit.to_string()), "{says}");
    assert_eq!(text(&output.stdout).lines().count(), 1, "what came before is appended, and its number told");
    let says = server.fails(&["append", "orders", "--raw"], &vec![b'x'; limit + 1], 1);
    assert!(says.contains(&limit.to_string()), "{says}");
    let output = server.run_with(&["append", "orders", "--raw"], &vec![b'x'; limit]);
    assert_eq!(text(&output.stdout).lines().count(), 1);
    serves(&server);
}

#[test]
fn garbage_on_the_port_harms_nobody_else() {
    let Some(folder) = folder(On::Tmpfs) else { return };
    let server = Server::start(folder.path());
    let garbage: [&[u8]; 5] = [
        b"GET / HTTP/1.1\r\nHost: flexlog\r\n\r\n",
        &[0xff; 64],
        // A frame of 4 GiB, a truncated one, and one that holds no message.
        &[0xff, 0xff, 0xff, 0xff, 1, 2, 3],
        &[100, 0, 0, 0, 1, 2, 3],
        &[3, 0, 0, 0, 0xff, 0xff, 0xff],
    ];
    for bytes in garbage {
        let mut stream = TcpStream::connect(&server.address).unwrap();
        stream.write_all(bytes).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut answer = Vec::new();
        // The node says why, where it can, and closes.
        let _ = stream.read_to_end(&mut answer);
        serves(&server);
    }
}

#[test]
fn a_busy_port_and_a_folder_in_use() {
    let Some(first) = folder(On::Tmpfs) else { return };
    let Some(second) = folder(On::Tmpfs) else { return };
    let server = Server::start(first.path());
    up_fails(up(second.path(), &server.address), &[&server.address]);
    up_fails(up(first.path(), "127.0.0.1:0"), &[&first.path().display().to_string(), "in use"]);
    up_fails(up(first.path(), "nonsense"), &["nonsense"]);
    serves(&server);
}

#[test]
fn a_replica_folder_of_another_cluster_or_another_day() {
    let Some(mine) = folder(On::Tmpfs) else { return };
    let Some(other) = folder(On::Tmpfs) else { return };
    for folder in [&mine, &other] {
        let server = Server::start(folder.path());
        server.run_with(&["append", "orders"], b"one\n");
        server.terminate();
    }
    let yesterday = mine.path().join("yesterday");
    copy_folder(&mine.path().join("replica-2"), &yesterday);
    let server = Server::start(mine.path());
    server.run_with(&["append", "orders"], b"two\n");
    server.terminate();

    let swap = |from: &Path| {
        std::fs::remove_dir_all(mine.path().join("replica-2")).unwrap();
        copy_folder(from, &mine.path().join("replica-2"));
    };
    let today = mine.path().join("today");
    copy_folder(&mine.path().join("replica-2"), &today);
    swap(&other.path().join("replica-2"));
    up_fails(up(mine.path(), "127.0.0.1:0"), &["replica-2", "cluster"]);
    swap(&other.path().join("replica-1"));
    up_fails(up(mine.path(), "127.0.0.1:0"), &["replica-2"]);
    swap(&yesterday);
    up_fails(up(mine.path(), "127.0.0.1:0"), &["replica 2", "older image"]);
    std::fs::remove_dir_all(mine.path().join("replica-2")).unwrap();
    up_fails(up(mine.path(), "127.0.0.1:0"), &["replica 2", "wiped"]);
    // The right folder is taken back.
    swap(&today);
    let server = Server::start(mine.path());
    assert_eq!(server.run(&["tail", "orders"]), "one\ntwo\n");
    serves(&server);
}

#[test]
fn a_read_only_folder() {
    let Some(folder) = folder(On::Tmpfs) else { return };
    let Some(unshare) = tool("unshare") else { return skipped("no `unshare` on this machine") };
    // A file system of its own, in a mount namespace of its own: root may write to any folder that is not read-only.
    let script = "mount -t tmpfs -o ro none \"$1\" && exec \"$2\" up --listen 127.0.0.1:0 --dir \"$1/data\"";
    let mut command = Command::new(unshare);
    command.args(["--mount", "sh", "-c", script, "sh"]).arg(folder.path()).arg(BINARY);
    let mut probe = Command::new(tool("unshare").unwrap());
    probe.args(["--mount", "mount", "-t", "tmpfs", "none"]).arg(folder.path());
    if !run(probe, b"").status.success() {
        return skipped("no right to mount a file system");
    }
    up_fails(command, &[&folder.path().display().to_string(), "ead-only"]);
}

#[test]
fn a_full_area_refuses_appends_until_something_is_trimmed() {
    let Some(folder) = folder(On::Tmpfs) else { return };
    let limits = ["--area-limit", "75497472", "--segment", "8388608", "--ssd", "none"];
    let server = Server::start_at(folder.path(), "127.0.0.1:0", &limits);
    let payload = "x".repeat(10_000);
    let lines: String = (0..12_000).map(|i| format!("{i} {payload}\n")).collect();
    let mut command = up(folder.path(), "127.0.0.1:0");
    command.args(["--segment", "4096"]);
    up_fails(command, &["4096", "8388608"]);
    let output = run(server.command(&["append", "orders"]), lines.as_bytes());
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("full"), "{}", text(&output.stderr));
    let given: Vec<String> = text(&output.stdout).lines().map(str::to_owned).collect();
    assert!(given.len() > 100, "{} fit", given.len());
    let last = given.last().unwrap();
    assert!(server.run(&["read", "orders", last]).starts_with(&format!("{} xxx", given.len() - 1)), "reads go on");
    // Several times over: space is used again, not just once.
    for _ in 0..5 {
        let tail = server.run(&["tail", "orders", "--last", "1", "--json"]);
        let last = support::json_lines(&tail)[0]["number"].as_str().unwrap().to_owned();
        server.run(&["trim", "orders", &last]);
        let more: String = (0..200).map(|i| format!("{i} {payload}\n")).collect();
        let output = server.run_with(&["append", "orders"], more.as_bytes());
        assert_eq!(text(&output.stdout).lines().count(), 200);
    }
    server.terminate();
    let server = Server::start_at(folder.path(), "127.0.0.1:0", &limits);
    assert_eq!(server.run(&["read", "orders", "--from", "0.0"]).lines().count(), 200);
    serves(&server);
}
