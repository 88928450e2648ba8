//! Sessions end when their clients leave: a shard serves far more clients, one after the other, than it has sessions for.

// Helpers are outside of test functions, where the lints do not see that this is a test.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stderr)]

mod support;

use flexlog_protocol::limits::MAX_SESSIONS;
use support::{On, Server};

fn open_sessions(server: &Server) -> u64 {
    let status = support::json_lines(&server.run(&["status", "--json"]));
    status[0]["shards"][0]["sessions"].as_u64().unwrap()
}

#[test]
fn more_clients_come_and_go_than_there_are_sessions() {
    let Some(folder) = support::folder(On::Tmpfs) else { return };
    let server = Server::start(folder.path());
    let mut given = String::new();
    for _ in 0..MAX_SESSIONS + 176 {
        given += &support::text(&server.run_with(&["append", "c"], b"x\n").stdout);
    }
    support::assert_contiguous(&support::numbers(&given), 0);
    assert_eq!(open_sessions(&server), 0);
}

#[test]
fn the_append_command_closes_its_session_also_after_an_error() {
    let Some(folder) = support::folder(On::Tmpfs) else { return };
    let server = Server::start(folder.path());
    server.run_with(&["append", "c"], b"one\ntwo\n");
    assert_eq!(open_sessions(&server), 0);
    let mut too_long = b"three\n".to_vec();
    too_long.resize((1 << 20) + 10, b'x');
    let error = server.fails(&["append", "c"], &too_long, 1);
    assert!(error.contains("line 2"), "{error}");
    assert_eq!(support::numbers(&server.run(&["append", "c", "--file", "/dev/null"])), []);
    assert_eq!(open_sessions(&server), 0);
    assert_eq!(server.run(&["read", "c", "--from", "0.0"]).lines().count(), 3);
}
